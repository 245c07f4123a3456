"""A master whose first life finds the socket of the heartbeats held by somebody who lives."""

from __future__ import annotations

import os
import socket

from elasticdl.cluster.local.place import own_place
from elasticdl.job import master

if os.environ["ELASTICDL_PROCESS"] == "master-0-1":
    holder = socket.socket(socket.AF_UNIX)
    holder.bind(own_place().heart_address.removeprefix("unix:"))
    holder.listen()
master.main()
