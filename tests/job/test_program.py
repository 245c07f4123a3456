"""A worker's pod becomes the user's program, in the model zoo that was sent with the job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import BadModel
from elasticdl.job import podrun, podsubmit
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec

BECOME = """
import sys
from elasticdl.cluster.kubernetes import podplace
from elasticdl.job import program
from elasticdl.spec.edge import build, from_arguments
class Place:
    def spec(self):
        return build(from_arguments({"job_command": sys.argv[2:], "model_zoo": sys.argv[1], "threads_per_worker": 3}))
podplace.own_pod = Place
sys.exit(program.main())
"""


def become(zoo: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BECOME, zoo, *command], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_pod_becomes_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("echo $PWD $OMP_NUM_THREADS $1; exit 5")
    done = become(str(tmp_path), "sh", "train.sh", "a b")
    assert (done.returncode, done.stdout) == (5, f"{tmp_path} 3 a b\n")


def test_a_program_that_the_image_lacks(tmp_path: Path) -> None:
    done = become(str(tmp_path), "no-such-program", "x")
    assert done.returncode == 127
    said = (
        f"the command 'no-such-program' can't be run in {tmp_path} and the image: No such file or directory\n"
    )
    assert done.stderr == said


def in_pods(**more: Any) -> JobSpec:
    given = {"job_command": "python3 train.py", "image_name": "image", "job_name": "job"}
    return build(from_arguments({**given, **more}))


def test_only_a_model_zoo_that_was_named_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    assert podsubmit.packed_zoo(in_pods()) == b""
    podrun.check(in_pods())
    sent = in_pods(model_zoo="src")
    podrun.check(sent)
    assert podsubmit.packed_zoo(sent)
    assert podsubmit.packed_zoo(in_pods(model_zoo="/in/the/image")) == b""
    with pytest.raises(BadModel, match="'elsewhere' is not a directory here"):
        podrun.check(in_pods(model_zoo="elsewhere"))
