"""Loaded by every Python process whose PYTHONPATH has this folder: surroundings that a test gives to the processes of a job.

CLOCK names a file with seconds by which the clock of the day is off. HOST is an address at which the processes of a local job listen and
reach each other by TCP, as in pods, instead of by sockets of the file system.
"""

from __future__ import annotations

import os
import time

if path := os.environ.get("CLOCK"):
    true_time = time.time

    def wrong_time() -> float:
        with open(path, encoding="ascii") as file:
            return true_time() + float(file.read() or 0)

    time.time = wrong_time

if host := os.environ.get("HOST"):
    from elasticdl.cluster.local.place import JobPlace

    JobPlace.control_address = property(lambda self: f"tcp:{host}:50001")
    JobPlace.heart_address = property(lambda self: f"tcp:{host}:50002")
    JobPlace.data_address = lambda self, member: f"tcp:{host}:0"
