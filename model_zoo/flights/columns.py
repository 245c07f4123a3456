"""The flights' columns as models take them: names as ids of one table, numbers scaled, and the label."""

from flights.fields import FIELDS as FIELDS
from flights.fields import IDS, NAMES, SCALES
from hashed.columns import feed_of

feed = feed_of(NAMES, SCALES, "late", IDS)
