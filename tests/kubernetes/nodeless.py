"""Stands for `elasticdl` and `kubectl` where tests run whole pages of documentation on a cluster without nodes.

The commands are the real ones, against a real API server. What only nodes can do is left out: nobody waits for pods that will never run,
and two workers' pods are made as a master would make them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from elasticdl import cli
from elasticdl.cluster.kubernetes.api import connect
from elasticdl.tools import survey

from . import binaries

ON_NODES = ("cp", "exec", "wait")
"""Commands of kubectl that need a node; all others are its own."""


def elasticdl(arguments: list[str]) -> int:
    """Run a command of this package."""
    survey.ROOM_SECONDS = 1.0
    if arguments[0] == "logs":
        return cli.run([one for one in arguments if one != "-f"])
    if arguments[0] != "train" or "--dry-run" in arguments:
        return cli.run(arguments)
    code = cli.run([*arguments, "--detach"])
    if code == 0:
        _make_workers(arguments)
    return code


def _make_workers(arguments: list[str]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.run([*arguments, "--dry-run", "-o", "json"])
    job, *_, worker = json.loads(printed.getvalue())["items"]
    api, name = connect(job["metadata"]["namespace"]), job["metadata"]["name"]
    worker["metadata"]["ownerReferences"][0]["uid"] = api.get("Job", name)["metadata"]["uid"]
    for index in range(2):
        worker["metadata"]["name"] = f"{name}-worker-{index}-1"
        worker["metadata"]["labels"]["elasticdl.org/index"] = str(index)
        api.create(worker)


def kubectl(arguments: list[str]) -> int:
    """Of a command that needs a running pod, see that there is that pod."""
    names = [one.partition(":")[0] for one in arguments[1:] if not one.startswith("-")]
    at = {"exec": 0, "wait": 1}.get(arguments[0], 1 if ":" in arguments[2] else 0)
    (namespace,) = [one for one in arguments if one.startswith("--namespace=")]
    program = binaries.folder() / "cluster"
    os.execv(program, [str(program), "kubectl", "get", "pod", names[at], namespace])


if __name__ == "__main__":
    sys.exit({"elasticdl": elasticdl, "kubectl": kubectl}[sys.argv[1]](sys.argv[2:]))
