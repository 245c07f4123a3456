"""Loaded by every Python process whose PYTHONPATH has this folder: surroundings that a test gives to the processes of a job.

CLOCK names a file with seconds by which the clock of the day is off. HOST is an address at which the processes of a local job listen and
reach each other by TCP, as in pods, instead of by sockets of the file system. HELD names processes that never register: when one would,
it leaves a file `NAME.PID` in the directory HELD_AT, and waits.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

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

if "ELASTICDL_JOB" in os.environ and "HELD" in os.environ:
    from elasticdl.control.protocol.messages import Register
    from elasticdl.control.protocol.psmessages import Enroll
    from elasticdl.control.transport.memberstream import MemberStream

    true_send = MemberStream.send

    def send_but_register(self: MemberStream, message: Any) -> bool:
        # by the message's name, because a spare process has none when this is loaded
        if isinstance(message, Register | Enroll) and message.name in os.environ["HELD"].split():
            (Path(os.environ["HELD_AT"]) / f"{message.name}.{os.getpid()}").touch()
            threading.Event().wait()
        return true_send(self, message)

    MemberStream.send = send_but_register
