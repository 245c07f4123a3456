"""The cluster's network: namespaces of its own on a bridge of its own, gone without a trace when it is closed.

One namespace holds the bridge and the control plane, and each node has another, so that a node's cable can be cut. The machine
itself reaches the control plane, and through it the nodes and their pods, over one more cable.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
from collections.abc import Sequence

_FIRST_NET, _LAST_NET = 200, 250
"""The cluster takes one of 10.200.0.0/16 … 10.249.0.0/16 that nobody has, at random: what one leaves is not soon another's."""


class Network:
    """Bridge, namespaces and addresses of one cluster."""

    def __init__(self) -> None:
        """Make the namespace of the control plane with the bridge."""
        for number in random.sample(range(_FIRST_NET, _LAST_NET), _LAST_NET - _FIRST_NET):
            self.name = f"edl{number}"
            if _succeeds("ip", "netns", "add", self.name):
                break
        else:
            raise RuntimeError("all networks for test clusters are taken")
        self._net = f"10.{number}"
        self.address = f"{self._net}.0.1"
        """The control plane's address."""
        self.pods = f"{self._net}.0.0/16"
        """The addresses of nodes and pods."""
        self._nodes: list[str] = []
        try:
            self._run("ip", "link", "add", "br0", "type", "bridge")
            self._run("ip", "address", "add", f"{self.address}/24", "dev", "br0")
            self._run("ip", "link", "set", "br0", "up")
            self._run("ip", "link", "set", "lo", "up")
            self._run("sysctl", "-qw", "net.ipv4.ip_forward=1")
            _check("ip", "link", "add", self.name, "type", "veth", "peer", "name", "host", "netns", self.name)
            self._run("ip", "link", "set", "host", "master", "br0", "up")
            _check("ip", "address", "add", f"{self._net}.0.254/24", "dev", self.name)
            _check("ip", "link", "set", self.name, "up")
            _check("ip", "route", "add", self.pods, "via", self.address)
            self._run("ip", "route", "add", "default", "via", f"{self._net}.0.254")
        except BaseException:
            self.close()
            raise

    def enter(self, node: int | None = None) -> tuple[str, ...]:
        """Return the command that runs another one in the namespace of the control plane, or of a node."""
        return ("nsenter", f"--net=/run/netns/{self._namespace(node)}", "--")

    def add_node(self, node: int) -> str:
        """Connect a node's namespace and return its address; its pods have `pods_of(node)`."""
        space, address = self._namespace(node), self.node_address(node)
        _check("ip", "netns", "add", space)
        self._nodes.append(space)
        enter = self.enter(node)
        self._run("ip", "link", "add", f"n{node}", "type", "veth", "peer", "name", "eth0", "netns", space)
        self._run("ip", "link", "set", f"n{node}", "master", "br0", "up")
        _check(*enter, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _check(*enter, "ip", "link", "set", "eth0", "up")
        _check(*enter, "ip", "link", "set", "lo", "up")
        _check(*enter, "ip", "route", "add", "default", "via", self.address)
        _check(*enter, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._run("ip", "route", "add", self.pods_of(node), "via", address)
        return address

    def node_address(self, node: int) -> str:
        """Return a node's address."""
        return f"{self._net}.0.{10 + node}"

    def pods_of(self, node: int) -> str:
        """Return the addresses of a node's pods."""
        return f"{self._net}.{node}.0/24"

    def cut(self, node: int) -> None:
        """Pull a node's cable."""
        self._run("ip", "link", "set", f"n{node}", "down")

    def mend(self, node: int) -> None:
        """Put a node's cable back."""
        self._run("ip", "link", "set", f"n{node}", "up")

    def block(self, node: int, pod: str) -> None:
        """Drop what a node's pod sends to the control plane."""
        _check(*self.enter(node), "iptables", "-I", "FORWARD", *self._to_control_plane(pod))

    def unblock(self, node: int, pod: str) -> None:
        """Let it through again."""
        _check(*self.enter(node), "iptables", "-D", "FORWARD", *self._to_control_plane(pod))

    def _to_control_plane(self, pod: str) -> tuple[str, ...]:
        return ("-s", pod, "-d", self.address, "-j", "DROP")

    def close(self) -> None:
        """Remove everything."""
        for space in (*self._nodes, self.name):
            _succeeds("ip", "netns", "delete", space)
        with contextlib.suppress(OSError):
            _succeeds("ip", "link", "delete", self.name)

    def _namespace(self, node: int | None) -> str:
        return self.name if node is None else f"{self.name}-{node}"

    def _run(self, *command: str) -> None:
        _check(*self.enter(), *command)


def _check(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _succeeds(*command: Sequence[str] | str) -> bool:
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0
