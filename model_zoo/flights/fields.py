"""Which columns of the flights models take, and how: this file needs no framework."""

IDS = 1 << 17
NAMES = ("carrier", "tailnum", "flight", "origin", "dest", "hour", "month")
FIELDS = len(NAMES)
"""Ids of an example: carrier, aircraft, flight, origin, destination, hour of the day and month."""
SCALES = {"distance": 1000.0, "temp": 50.0, "wind_speed": 10.0, "precip": 0.1, "visib": 10.0}
