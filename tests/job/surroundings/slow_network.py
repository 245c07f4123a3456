"""Run a command in a network namespace in which packets to 127.0.0.1 take their time, and some are lost: `DELAY LOSS COMMAND...`.

Does what `tc netem` does where a kernel has that: what is sent to 127.0.0.1 leaves by a TUN device, and comes back by it DELAY seconds
later, but for a share LOSS of it. The device takes addresses of this machine as senders (`accept_local`, `route_localnet`), and the rules
look at the local table only for what has come back.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time

_DEVICE = "slow0"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SETUP = f"""
ip link set lo up
ip link set {_DEVICE} up txqueuelen 10000
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.{_DEVICE}.rp_filter=0
sysctl -qw net.ipv4.conf.{_DEVICE}.accept_local=1 net.ipv4.conf.{_DEVICE}.route_localnet=1
ip rule add pref 10 iif {_DEVICE} lookup local
ip route add 127.0.0.1 dev {_DEVICE} src 127.0.0.1 table 100
ip rule add pref 20 to 127.0.0.1 lookup 100
ip rule add pref 30 lookup local
ip rule del pref 0
"""


def main() -> int:
    delay, loss, command = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    for line in _SETUP.strip().splitlines():
        subprocess.run(line.split(), check=True)
    threading.Thread(target=_carry, args=(device, delay, loss), daemon=True).start()
    return subprocess.run(command, check=False).returncode


def _carry(device: int, delay: float, loss: float) -> None:
    draw, number = random.Random(0), 0
    on_the_way: list[tuple[float, int, bytes]] = []
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        if select.select([device], [], [], wait)[0]:
            packet, number = os.read(device, 65536), number + 1
            if draw.random() >= loss:
                heapq.heappush(on_the_way, (time.monotonic() + delay, number, packet))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            os.write(device, heapq.heappop(on_the_way)[2])


if __name__ == "__main__":
    sys.exit(main())
