"""Whole jobs to attack, started as the tests of jobs start them."""

from tests.job.conftest import ids as ids
from tests.job.conftest import iris as iris
from tests.job.conftest import plain as plain
from tests.job.conftest import start as start
