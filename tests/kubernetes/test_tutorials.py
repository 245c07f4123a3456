"""The tutorials about clusters, run as they stand: one whole on real nodes, the others against a real API server without nodes."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.api import Api, resource_of
from elasticdl.tools import doctor

from . import binaries, nodeless
from .control_plane import ControlPlane
from .image import IMAGE
from .jobs import ROOT, SECONDS, Job, api_of, left
from .processes import wait_for
from .rights import group_of, may
from .testbed import Testbed, write_tools

PAGES = ROOT / "docs" / "tutorials"
NODELESS = {"on-premise": "vision", "managed-cloud": "training"}
"""Tutorials, and the namespaces that they make."""


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page that are in a language."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def lay_out(folder: Path, page: str) -> Path:
    """Make what looks like a clone, with the files of a page: each says its name in its first line."""
    clone = folder / "elasticdl"
    clone.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "dist", "model_zoo", ".demo", ".chaos", ".bench"):
            (clone / path.name).symlink_to(path)
    shutil.copytree(ROOT / "model_zoo", clone / "model_zoo", ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(page, "yaml"):
        name = re.match(r"# (\S+\.yaml)\n", block)
        assert name, f"no name of a file: {block}"
        (clone / name[1]).write_text(block)
    return clone


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def stand_ins(clone: Path) -> None:
    """Lay out an environment whose programs need no nodes and build nothing; what the builders are asked for stands in `asked`."""
    tools = clone / ".venv" / "bin"
    stand_in = f"exec {sys.executable} -m tests.kubernetes.nodeless"
    script(tools / "elasticdl", f'{stand_in} elasticdl "$@"')
    # what needs no node needs no other program first
    cases = f'{"|".join(nodeless.ON_NODES)}) {stand_in} kubectl "$@" ;;'
    script(tools / "kubectl", f'case "$1" in {cases} esac\nexec {binaries.folder() / "cluster"} kubectl "$@"')
    script(tools / "python", f'exec {sys.executable} "$@"')
    for name in ("docker", "buildah", "load-image"):
        script(tools / name, f'echo {name} "$@" >> {clone}/asked')
    script(
        tools / "make",
        f'{shutil.which("make")} --dry-run "$@" && mkdir -p dist && touch dist/elasticdl-0-py3-none-any.whl',
    )
    (tools / "activate").write_text(f'PATH="{tools}:$PATH"\n')


def shell(commands: str, clone: Path, environment: Mapping[str, str]) -> str:
    """Run commands as a session that ends with the first that fails; return what they print."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=clone,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    print(commands, done.stdout)
    assert done.returncode == 0, f"{commands}\n{done.stdout[-8000:]}"
    return done.stdout


@pytest.fixture
def clean(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane, without the priorities that the tutorials make; their namespaces, one each, take their time to end."""
    yield control_plane
    made = ("namespace/vision", "namespace/training", "persistentvolume/vision")
    classes = ("priorityclass/high", "priorityclass/low")
    control_plane.kubectl("delete", "--ignore-not-found", "--wait=false", *made, *classes)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", NODELESS)
def test_a_tutorial_against_the_api(page: str, clean: ControlPlane, tmp_path: Path) -> None:
    clone = lay_out(tmp_path, page)
    stand_ins(clone)
    environment = {
        "KUBECONFIG": str(clean.kubeconfig),
        "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "REGISTRY_PASSWORD": "secret",
    }

    def quotas_are_counted() -> bool:
        found = json.loads(clean.get("/api/v1/resourcequotas") or "")["items"]
        return all("hard" in one.get("status", {}) for one in found)

    output = ""
    for block in blocks(page, "sh"):
        wait_for("the quotas", quotas_are_counted, 60.0)
        output += shell(block, clone, environment)
    asked = (clone / "asked").read_text()
    image = re.search(r"image_name: (\S+)", "".join(blocks(page, "yaml")))
    assert image
    assert f"--tag={image[1]}" in asked
    assert f"push {image[1]}" in asked
    assert "wrong" not in output
    for word in (
        "a service account of its own",
        "the claim 'training' is there",
        "kind: Job",
    ):
        assert word in output
    assert f"test-mnist has been submitted to the namespace {NODELESS[page]}" in output
    assert "test-mnist has been asked for 8 workers" in output
    assert 'pod "test-mnist-worker-1-1" deleted' in output
    assert "everything that it made in the cluster is removed" in output


@pytest.mark.parametrize("page", NODELESS)
def test_who_is_bound_as_a_tutorial_says_may_submit_and_watch(
    page: str, control_plane: ControlPlane, api: Api
) -> None:
    import yaml

    bodies = [body for block in blocks(page, "yaml") for body in yaml.safe_load_all(block)]
    (binding,) = [body for body in bodies if body.get("kind") == "RoleBinding"]
    binding["metadata"]["namespace"] = api.namespace
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(binding))
    (subject,) = binding["subjects"]
    is_group = subject["kind"] == "Group"
    user, groups = ("somebody", [subject["name"]]) if is_group else (subject["name"], [])
    for right in (*doctor.SUBMIT, *doctor.WATCH, *doctor.LOGS, *doctor.PROBE):
        group, resource = group_of(right.kind), resource_of(right.kind)
        wait_for(
            f"the right to {right.verb} {right.kind}",
            functools.partial(
                may, control_plane, api.namespace, user, right.verb, group, resource,
                subresource=right.subresource, groups=groups,
            ),
            30.0,
        )  # fmt: skip


def test_what_the_local_tutorial_builds(tmp_path: Path) -> None:
    clone = lay_out(tmp_path, "local-cluster")
    stand_ins(clone)
    before, cluster = "", ""
    for block in blocks("local-cluster", "sh"):
        before += "" if cluster else block
        cluster = cluster or (block if "make cluster" in block else "")
    path = {"PATH": f"{clone}/.venv/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    output = shell(before, clone, path)
    assert "tests.kubernetes.binaries" in output
    assert "tests.kubernetes.testbed" in output
    build, push = (clone / "asked").read_text().splitlines()
    assert build.startswith(
        "buildah bud --tag=localhost/elasticdl:mnist --build-arg=PACKAGE=/tmp/package/elasticdl-0"
    )
    assert push == "buildah push localhost/elasticdl:mnist docker-archive:image.tar:localhost/elasticdl:mnist"


@pytest.mark.timeout(1800)
def test_the_local_tutorial_on_real_nodes(ready: Testbed, tmp_path: Path) -> None:
    clone = lay_out(tmp_path, "local-cluster")
    tools = tmp_path / "bin"
    write_tools(ready, tools)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"KUBECONFIG": str(ready.kubeconfig), "PATH": path}
    api = api_of(ready, "training")
    job = Job("disturbed", ready, api, subprocess.Popen(["true"]), clone / "shared", clone / "none")

    def trains(*workers: str) -> Callable[[], None]:
        return lambda: wait_for(f"{workers}", lambda: set(workers) <= set(job.training()), SECONDS)

    def master_came_back() -> None:
        wait_for("the next master", lambda: len(job.events("master")) == 1, SECONDS)

    # what a person waits for before each of them
    first = {
        "elasticdl status disturbed": trains("worker-0-1", "worker-1-1"),
        "kubectl delete pod --namespace=training -l": trains("worker-0-1", "worker-1-2"),
        "elasticdl scale disturbed": master_came_back,
        "kubectl describe job": lambda: wait_for("three workers", lambda: len(job.training()) == 3, SECONDS),
    }
    commands = blocks("local-cluster", "sh")
    at = next(number for number, block in enumerate(commands) if "create namespace" in block)
    (load,) = [block for block in commands[:at] if "load-image" in block]
    for node in ready.nodes:
        node.name_image(IMAGE, "localhost/elasticdl:mnist")
    output = ""
    try:
        for block in commands[at:]:
            for beginning, wait in list(first.items()):
                if block.startswith(beginning):
                    wait()
                    del first[beginning]
            output += shell(block, clone, environment)
            if "rm -rf" not in block and "stop" in block:
                wait_for("the end of all that a job made", lambda: not left(api), SECONDS)
    finally:
        ready.cordon("node2", away=False)
        ready.kubectl(
            "delete", "--ignore-not-found", "namespace/training", "priorityclass/high", "priorityclass/low"
        )
    assert not first, first
    assert shutil.which("load-image", path=path)
    assert "load-image image.tar" in load
    assert "was trained exactly once" in output
    assert "were trained, each once in its epoch" in output
    assert output.count("held-out accuracy") == 2
    assert "training, 2/2 workers, epoch" in output
    # Whether a worker was on the node that is drained is the scheduler's affair.
    for told in ("Launched", "Scaled", "Master", "killed by SIGKILL", "node/node2 drained"):
        assert told in output
    assert not (clone / "shared").exists()
