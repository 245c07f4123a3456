"""A whole cluster on this machine: control plane, real nodes, network. `python -m tests.kubernetes.testbed` gives a shell in it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from . import binaries, images
from .control_plane import ControlPlane
from .network import Network
from .node import PAUSE, Node
from .processes import wait_for

PACKAGES = ("containerd", "runc", "ctr", "iptables", "ip", "nsenter", "unshare")
"""Programs that real nodes need beside the cluster's own."""
_READY_SECONDS = 180.0


def missing() -> str:
    """Return why this machine can't have real nodes, or nothing."""
    if os.geteuid():
        return "nodes need root"
    absent = [program for program in PACKAGES if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed; `make setup-cluster` does" if absent else binaries.missing()


class Testbed:
    """One cluster; everything of it is gone when it is closed."""

    __test__ = False  # pytest takes it for tests otherwise

    def __init__(self, nodes: int = 2, lent: Path | None = None) -> None:
        """Bring it up, with layers of images that are `lent` to its nodes: some seconds once its program has been built."""
        # Otherwise whoever is asked to end would leave nodes behind.
        self._before = {
            one: signal.signal(one, signal.default_int_handler)
            for one in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(one) is signal.SIG_DFL
        }
        programs = binaries.build()
        binary = programs / "cluster"
        self.folder = Path(tempfile.mkdtemp(prefix="edl-cluster-"))
        self.network = Network()
        self.nodes: list[Node] = []
        try:
            self.control_plane = ControlPlane(
                binary, self.folder / "control", self.network.address, self.network.enter()
            )
            self.control_plane.add_node_users([f"node{number}" for number in range(1, nodes + 1)])
            pause = self.folder / "pause.tar"

            def prepare() -> None:
                images.of_one_program(programs / "pause", PAUSE, pause)
                for number in range(1, nodes + 1):
                    kubeconfig = self.control_plane.folder / f"node{number}.kubeconfig"
                    folder = self.folder / f"node{number}"
                    self.nodes.append(Node(number, binary, folder, kubeconfig, self.network, lent))

            # tens of thousands of links to the layers, which the disk makes while the API server starts
            with ThreadPoolExecutor(1) as preparing:
                prepared = preparing.submit(prepare)
                self.control_plane.start()
                prepared.result()

            def begin(node: Node) -> None:
                node.start()
                node.load(pause)

            with ThreadPoolExecutor(nodes) as starting:
                list(starting.map(begin, self.nodes))
            for node in self.nodes:
                self.wait_ready(node)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's configuration file."""
        return self.control_plane.kubeconfig

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it prints."""
        return self.control_plane.kubectl(*arguments, check=check, stdin=stdin)

    def cordon(self, node: str, *, away: bool = True) -> None:
        """Let no more pods be placed on a node, or again if it is not `away`."""
        change = {"spec": {"unschedulable": away or None}}
        if self.control_plane.patch(f"/api/v1/nodes/{node}", change) is None:
            raise RuntimeError(f"{node} is not changed")

    def lose(self, node: Node) -> None:
        """Take a node's power and cable away at once."""
        self.network.cut(node.number)
        node.lose()

    def recover(self, node: Node) -> None:
        """Start a lost node again, and wait until pods can be placed on it."""
        self.network.mend(node.number)
        node.start()
        self.wait_ready(node)

    def wait_ready(self, node: Node, seconds: float = _READY_SECONDS) -> None:
        """Wait until pods can be placed on a node."""
        wait_for(f"{node.name}", lambda: self._is_ready(node), seconds, (node.init,))

    def _is_ready(self, node: Node) -> bool:
        text = self.control_plane.get(f"/api/v1/nodes/{node.name}")
        conditions = json.loads(text)["status"].get("conditions", []) if text else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def close(self) -> None:
        """End everything and remove it."""
        for node in self.nodes:
            node.close()
        if hasattr(self, "control_plane"):
            self.control_plane.stop()
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        for one, handler in self._before.items():
            signal.signal(one, handler)


def write_tools(testbed: Testbed, folder: Path) -> None:
    """Write what a person needs in a cluster of theirs.

    `kubectl`; `load-image ARCHIVE` hands an image to all nodes; `kill-pod NAMESPACE POD` kills a pod's process, as nobody can from inside.
    """
    folder.mkdir()
    clients = [shlex.join(node.client) for node in testbed.nodes]
    find = (
        'kubectl get pod --namespace="$1" "$2" --output=jsonpath="{.status.containerStatuses[0].containerID}"'
    )
    lines = {
        "kubectl": [f'exec {binaries.folder() / "cluster"} kubectl "$@"'],
        "load-image": [f'{client} images import --no-unpack "$1" || exit' for client in clients],
        "kill-pod": [
            f"id=$({find}) || exit",
            *(f"{one} tasks kill --signal=SIGKILL ${{id#*://}} 2> /dev/null && exit" for one in clients),
            'echo "no node has a process of $2" >&2',
            "exit 1",
        ],
    }
    for name, script in lines.items():
        tool = folder / name
        tool.write_text("\n".join(["#!/bin/sh", *script, ""]))
        tool.chmod(0o755)


def main() -> int:
    """Give a shell with KUBECONFIG, `kubectl`, `load-image` and `kill-pod` in a cluster of its own, or run a command there."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.testbed", description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("command", nargs="*", help="default: a shell")
    arguments = parser.parse_args()
    reason = missing()
    if reason:
        print(f"no cluster: {reason}", file=sys.stderr)
        return 2
    began = time.monotonic()
    with Testbed(arguments.nodes) as testbed:
        print(f"{arguments.nodes} nodes after {time.monotonic() - began:.1f} s; leave the shell to end them")
        tools = testbed.folder / "bin"
        write_tools(testbed, tools)
        environment = {
            **os.environ,
            "KUBECONFIG": str(testbed.kubeconfig),
            "PATH": f"{tools}:{os.environ['PATH']}",
        }
        command = arguments.command or [os.environ.get("SHELL", "sh")]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
