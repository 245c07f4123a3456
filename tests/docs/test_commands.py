"""The commands of the README and the tutorial, run as they stand there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.jax import need_jax
from tests.torch import need_torch

ROOT = Path(__file__).resolve().parents[2]
SHORTER = {"--num_epochs=200 ": "--num_epochs=50 ", "--every 2s ": "--every 1s "}
"""What is written otherwise in the tutorial: a script needs less time for its faults than a person."""


def blocks(page: Path) -> list[str]:
    """Return the shell commands of a page."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A directory that looks like a clone in which `make setup` has been run."""
    # What is out of date is made there: made through the links below, .venv/bin/elasticdl would name a directory that goes away.
    run("make setup", ROOT)
    directory = tmp_path / "elasticdl"
    directory.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", ".demo", ".chaos", ".bench", "dist"):
            (directory / path.name).symlink_to(path)
    yield directory
    left = [process for process in psutil.process_iter() if belongs(process, tmp_path)]
    for process in left:
        process.kill()
    assert not left, f"processes of a job are left: {left}"


def belongs(process: psutil.Process, directory: Path) -> bool:
    try:
        return process.environ().get("XDG_STATE_HOME", "").startswith(str(directory))
    except psutil.Error:
        return False


def run(commands: str, directory: Path) -> str:
    """Run commands as one shell session that ends with the first that fails; return what they print."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"XDG_STATE_HOME": str(directory.parent / "state"), "TMPDIR": str(directory.parent)}
    environment.pop("XDG_RUNTIME_DIR", None)
    shell = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        # As in a terminal of its own: Linux shares processors between sessions, of which each process of a job has one. In that of the
        # tests, which run others beside this one, a command gets so little that the job has ended before it has shown the first step.
        start_new_session=True,
    )
    assert shell.returncode == 0, shell.stdout[-8000:]
    return shell.stdout


@pytest.mark.timeout(600)
def test_the_readme(clone: Path) -> None:
    demo, *others = blocks(ROOT / "README.md")
    assert demo == "make demo\n"
    # the demo takes minutes and runs beside the tests, by the same words
    assert " make demo\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    output = run("".join(others), clone)
    assert "finished" in output
    assert (clone / "digits.keras").stat().st_size > 0


@pytest.mark.timeout(1200)
def test_the_tutorial(clone: Path) -> None:
    *commands, clean = blocks(ROOT / "docs/tutorials/laptop.md")
    text = "".join(commands)
    for long, short in SHORTER.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    output = run(text, clone)
    assert output.count("was trained exactly once") == 2
    assert "of 50 epochs" in output
    assert re.search(r"a worker at a random moment: hit|the master at a random moment: hit", output)
    run(". .venv/bin/activate\n" + clean, clone)
    assert not (clone / "digits").exists()
    assert not list((clone.parent / "state" / "elasticdl" / "jobs").iterdir())


@pytest.mark.timeout(600)
def test_the_tutorial_of_parameter_servers(clone: Path) -> None:
    *commands, clean = blocks(ROOT / "docs/tutorials/parameter-servers.md")
    output = run("".join(commands), clone)
    assert "was trained exactly once" in output
    assert re.search(r"ps-\S+ +serving", output)
    assert re.search(r"ps-\S+ .*killed", output), output
    assert float(re.search(r"area under the curve: (\S+)", output)[1]) > 0.6
    assert len(re.findall(r"late with a probability of \d+%", output)) == 3
    run(". .venv/bin/activate\n" + clean, clone)
    assert not (clone / "data").exists()


@pytest.mark.timeout(600)
def test_the_tutorial_of_sql(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    *commands, clean = blocks(ROOT / "docs/tutorials/sql.md")
    path = f'export PATH="{Path(sys.executable).parent}:$PATH"\n'
    output = run(path + "".join(commands), folder)
    assert "city: category (text of 4 values)" in output
    assert "was trained exactly once" in output
    assert re.search(r"scores +\d+ +my_elasticdl_model", output)
    assert "'feature': 'age'" in output
    assert (folder / "worth.svg").is_file()
    assert float(re.search(r"^ *accuracy +(\S+)$", output, re.M)[1]) > 0.8
    run(f"{path}export ELASTICDL_STORE=models\n{clean}", folder)
    assert not list((folder / "models").glob("my_*"))


@pytest.mark.timeout(600)
def test_the_tutorial_of_images(clone: Path) -> None:
    pytest.importorskip("skimage")
    *commands, clean = blocks(ROOT / "docs/tutorials/images.md")
    output = run("".join(commands), clone)
    assert "each of the 4,800 records of 8 epochs was trained exactly once" in output
    assert "a worker at a random moment: hit" in output
    assert float(re.findall(r"val_accuracy (\S+)", output)[-1]) > 0.8
    found, there = (
        [*map(json.loads, re.findall(rf"^{word}: (.*)$", output, re.M))] for word in ("found", "there")
    )
    assert len(found) == len(there) == 20
    known = [
        box
        for boxes, others in zip(there, found, strict=True)
        for box in boxes
        if max((overlap(box, other) for other in others), default=0) > 0.5
    ]
    assert len(known) > sum(map(len, there)) / 2, (found, there)
    print(f"{len(known)} of {sum(map(len, there))} coins are found")
    run(". .venv/bin/activate\n" + clean, clone)
    assert not (clone / "pictures").exists()


def overlap(one: list[float], other: list[float]) -> float:
    """Return what two boxes have in common, divided by what they cover."""
    width, height = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    common = max(0.0, width) * max(0.0, height)
    areas = sum((right - left) * (bottom - top) for left, top, right, bottom in (one, other))
    return common / (areas - common)


@pytest.mark.timeout(600)
def test_the_tutorial_of_pytorch(clone: Path) -> None:
    need_torch()
    *commands, clean = blocks(ROOT / "docs/tutorials/pytorch.md")
    output = run("".join(commands), clone)
    assert "each of the 17,256 records of 12 epochs was trained exactly once" in output
    assert "a worker at a random moment: hit" in output
    accuracy = re.search(r"^accuracy: (\S+)", output, re.M)[1]
    assert float(accuracy) == pytest.approx(float(re.findall(r"val_accuracy (\S+)", output)[-1]), abs=1e-4)
    assert float(accuracy) > 0.9
    run(". .venv/bin/activate\n" + clean, clone)
    assert not (clone / "digits").exists()


@pytest.mark.timeout(600)
def test_the_tutorial_of_jax(clone: Path) -> None:
    need_jax()
    *commands, clean = blocks(ROOT / "docs/tutorials/jax.md")
    output = run("".join(commands), clone)
    assert "each of the 8,628 records of 6 epochs was trained exactly once" in output
    assert "a worker at a random moment: hit" in output
    accuracy = re.search(r"^accuracy: (\S+)", output, re.M)[1]
    assert float(accuracy) == pytest.approx(float(re.findall(r"val_accuracy (\S+)", output)[-1]), abs=1e-4)
    assert float(accuracy) > 0.9
    run(". .venv/bin/activate\n" + clean, clone)
    assert not (clone / "digits").exists()


@pytest.mark.timeout(600)
def test_the_tutorial_of_pytorch_loops(clone: Path) -> None:
    """A plain program and its elastic form are as good; the elastic one alone, and in a job that loses a worker."""
    need_torch()
    *commands, clean = blocks(ROOT / "docs/tutorials/pytorch-loop.md")
    output = run("".join(commands), clone)
    assert "each of the 240,000 records of 160 epochs was trained exactly once" in output
    assert "a worker at a random moment: hit" in output
    accuracies = re.findall(r"accuracy (0\.\d+)", output)
    assert len(accuracies) == 5 + 5 + 2 + 1
    plain, alone, one, other, result = (float(accuracies[at]) for at in (4, 9, 10, 11, 12))
    assert min(plain, alone, result) > 0.85
    assert abs(plain - alone) < 0.06
    assert one == other == result
    run(". .venv/bin/activate\n" + clean, clone)
    assert not (clone / "digits.pt").exists()


@pytest.mark.timeout(600)
def test_training_from_python(clone: Path) -> None:
    page = (ROOT / "docs/guides/python.md").read_text(encoding="utf-8")
    script = clone / "guide.py"
    script.write_text("".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)))
    output = run(". .venv/bin/activate\npython model_zoo/mnist/make_data.py digits\npython guide.py\n", clone)
    assert "finished 12 " in output
    assert "--training_data: 'nowhere' does not exist" in output
    assert (clone / "from-python.keras").stat().st_size > 0


def test_generated_pages_are_current() -> None:
    from docs.generate import DOCS as FOLDER
    from docs.generate import PAGES as GENERATED

    for name, page in GENERATED.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == page(), f"{name}: run `make docs`"
