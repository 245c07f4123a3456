"""Commands: exit codes, messages for mistakes, and what they show of jobs that run or have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version as installed
from pathlib import Path

import pytest

from elasticdl import cli
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobStatus, WorkerStatus
from elasticdl.control.transport.keys import Key
from elasticdl.control.transport.stream import ControlServer, ScaleWanted, ServerEvent, StopWanted
from elasticdl.errors import MasterAway
from elasticdl.job import asking, submit
from elasticdl.job.datafiles import leave_mark, predictions_draft
from elasticdl.job.launcher import Outcome
from elasticdl.spec import refused
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobKind, JobSpec

Run = Callable[..., tuple[int, str, str]]

MODEL = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    (tmp_path / "loop.yaml").write_text("job_command: sh x\nminibatch_size: 32\n")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def ended() -> JobPlace:
    """A job that has ended."""
    place = places.create(
        build(from_arguments({"model_def": "a.b", "training_data": "x"})), submitted_at=1_000_000.0
    )
    place.summary_path.write_text(
        json.dumps({"job": place.name, "status": "finished", "reason": "all data was trained", "steps": 7})
    )
    place.close()
    return place


@pytest.fixture
def running() -> Iterator[tuple[JobPlace, list[ServerEvent]]]:
    """A job that runs, as far as commands can tell; and what they asked of it."""
    place = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": "up"})))
    lock = place.hold()
    asked: list[ServerEvent] = []

    def deliver(event: ServerEvent) -> None:
        asked.append(event)
        if isinstance(event, StopWanted):
            event.answer(True, "the job ends at the next step boundary")
        if isinstance(event, ScaleWanted):
            numbers = [number for number in (event.workers, event.servers) if number is not None]
            event.answer(max(numbers) < 9, f"{numbers} from now on" if max(numbers) < 9 else "too many")

    server = ControlServer(place.control_address, place.token(), deliver)
    workers = (
        WorkerStatus("worker-0-1", "training", 123, "f" * 32),
        WorkerStatus("worker-1-2", "joining", None, None),
    )
    server.publish(
        JobStatus("up", "training", "2 workers", 3, 17, 1, 4, 0.43, 0.1234, 1088, 512.6, 75.0, 2, workers)
    )
    yield place, asked
    server.close()
    os.close(lock)
    place.close()


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tran"], "there is no command 'tran'; did you mean train?"),
        (["train", "--num_worker=3"], "there is no flag --num_worker; did you mean --num_workers?"),
        (["train", "--num-worker=3"], "there is no flag --num_worker; did you mean --num_workers?"),
        (["train", "--trained_model=m.pt2"], "--trained_model is a setting of `elasticdl evaluate` and `elasticdl predict`: "),
        (["train", "--checkpoint_dir_for_init=data.csv"], "name a checkpoint, or a directory of checkpoints; weights in a file are"),
        (["train", "--model_def"], "option '--model_def' requires an argument"),
        (["train", "extra"], "got unexpected extra argument (extra)"),
        (["train"], "--model_def is required. The model: `a.b.symbol` is the symbol in the file MODEL_ZOO/a/b.py."),
        (["train", "--num-workers=0"], "--num_workers: expected N or MIN:MAX, both at least 1, received '0'"),
        (["train", "--num_workers=99999"], "--num_workers: 99,999 workers are too many for this machine with"),
        (["train", "--wire_dtype=float16"], "--wire_dtype needs transfers of 16-bit numbers"),
        (["train", "--pod_template=x"], "--pod_template: 'x' can't be read: No such file or directory"),
        (["train", "--dry-run"], "--dry_run prints the objects of a job on Kubernetes, and a local job has none"),
            (["train", "--image_name=x"], "--training_data: on Kubernetes a path is one inside the pods"),
        (["train", "--dry-run", "-f", "x.yaml"], "-f x.yaml: can't be read: No such file or directory"),
        (["train", "--restart_policy=Always"], "--restart_policy is no longer a setting"),
        (["train", "--eval_metrics_fn=figures"], "model.py: does not define 'figures' (--eval_metrics_fn)"),
        (["clean", "--docker_image_repository=x", "--all"], "`elasticdl clean` is no longer a command: `elasticdl stop JOB"),
        (["train", "--model_def=model.custom_modl"], "model.py: does not define 'custom_modl' (--model_def); did you mean custom_model?"),
        (["train", "--model_def=mdel.custom_model"], "mdel.py: No such file or directory; --model_def=mdel.custom_model is looked for"),
        (["train", "--model_zoo=nothing"], "--model_zoo: 'nothing' is not a directory (looked from"),
        (["train", "--training_data=nothing"], "--training_data: 'nothing' does not exist (looked from"),
        (["train", "--output=/proc/m.keras"], "--output: '/proc/m.keras' can't be written: no file can be made in /proc by the user "),
        (["run"], "COMMAND: there is no command; write that of the program, as in `elasticdl run -- python train.py`"),
        (["run", "--", ""], "COMMAND: there is no command"),
        (["run", "--", "python3", "train.py"], "the command can't be run: there is no file 'train.py' (looked from"),
        (["run", "python3", "train.py", "--num_worker=3"], "there is no file 'train.py'"),
        (["run", "--num_worker=3", "--", "x"], "there is no flag --num_worker; did you mean --num_workers?"),
        (["run", "--", "no-such-program"], "there is no program 'no-such-program' (looked for in PATH)"),
        (["run", "--", "train.py"], "'train.py' is no program; `elasticdl run -- python train.py` runs a file of Python"),
        (["run", "--model_zoo=nothing", "--", "sh", "x"], "--model_zoo: 'nothing' is not a directory"),
        (["run", "--minibatch_size=32", "--", "sh", "x"], "--minibatch_size: the program of a custom training loop says it: DataLoader("),
        (["run", "--model_def=m.f", "--", "sh", "x"], "--model_def: a custom training loop makes its model itself; pass what it needs"),
        (["run", "--training_data=d", "--", "sh", "x"], "--training_data: a custom training loop reads its data itself"),
        (["run", "--num_ps_pods=2", "--", "sh", "x"], "--num_ps_pods: a custom training loop has no parameter servers; leave it out"),
        (["run", "--need_tf_config", "--", "sh", "x"], "--need_tf_config is no longer a setting: the workers of a job change while it"),
        (["run", "--job_command=x"], "--job_command is a flag of `train`; write the command at the end, after `--`"),
        (["run", "--dry-run", "--", "sh", "x"], "--dry_run prints the objects of a job on Kubernetes, and a local job has none"),
        (["run", "-o", "json", "--", "sh", "x"], "-o says how --dry_run prints; give both, or neither"),
        (["run", "-f", "loop.yaml"], "minibatch_size in loop.yaml: the program of a custom training loop says it"),
        (["run", "--image_name=x", "--model_zoo=nothing", "--", "sh"], "--model_zoo: 'nothing' is not a directory here; name one, or the"),
        (["run", "--image_name=x", "--model_zoo=.", "--", "python3", "no.py"], "there is no file 'no.py' (looked from"),
        (["status", "nobody"], "no job is named 'nobody'; there are no jobs"),
        (["logs", "nobody"], "no job is named 'nobody'"),
        (["stop", "nobody"], "no job is named 'nobody'"),
        (["scale", "nobody", "--num_workers=2"], "no job is named 'nobody'"),
        (["scale", "nobody", "--num_workers=0"], "0 is not in the range x>=1"),
        (["scale", "nobody", "--num_ps_pods=0"], "0 is not in the range x>=1"),
        (["scale", "nobody", "--num_ps_pods=x"], "'x' is not a valid whole number"),
        (["export", "nothere", "--output=x.keras"], "CHECKPOINT: 'nothere' does not exist"),
        (["checkpoint", "list", "nothere"], "nothere does not exist; name a directory of checkpoints"),
        (["checkpoint", "show", "nothere"], "'nothere' does not exist; name a checkpoint"),
        (["scale", "nobody"], "say how many the job is to have: --num_workers=N, --num_ps_pods=N or both"),
        (["chaos", "nobody"], "say what to inject"),
        (["audit", "nothing"], "Directory 'nothing' does not exist"),
        (["audit", "."], "holds no audit"),
        (["audit", "nothing", "."], "Directory 'nothing' does not exist"),
    ],
)  # fmt: skip
def test_mistakes_are_named(run: Run, here: Path, arguments: list[str], said: str) -> None:
    if arguments[0] == "train" and len(arguments) > 1 and "extra" not in arguments:
        given = {argument.partition("=")[0] for argument in arguments}
        defaults = {"--model_def": "model.custom_model", "--training_data": "data.csv"}
        added = [f"{name}={value}" for name, value in defaults.items() if name not in given]
        arguments = ["train", *added, *arguments[1:]]
    code, out, err = run(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
    assert out == ""
    assert not places.jobs_directory().exists()


def test_a_broken_model_file_is_named_with_its_line(run: Run, here: Path) -> None:
    (here / "model.py").write_text(MODEL + "def broken(:\n")
    code, _, err = run("train", "--model_def=model.custom_model", "--training_data=data.csv")
    assert code == 2
    assert err == "error: model.py:6: invalid syntax\n    def broken(:\n"


@pytest.mark.parametrize("command", refused.COMMANDS)
def test_commands_that_come_later_say_so(run: Run, command: str) -> None:
    for rest in ([], ["--help"], ["--x=1", "y"]):
        code, _, err = run(command, *rest)
        assert code == 2
        assert err == f"error: `elasticdl {command}` {refused.COMMANDS[command]}\n"


# ------------------------------------------------------------------ train


def test_the_version(run: Run) -> None:
    assert run("--version")[:2] == run("version")[:2] == (0, f"elasticdl {installed('elasticdl')}\n")


def test_flags_win_over_the_file(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "job.yaml").write_text(
        "model_def: model.custom_model\ntraining_data: data.csv\nnum_workers: 4\nseed: 5\nshuffle: true\n"
    )
    seen: list[JobSpec] = []

    def pretend(spec: JobSpec, submitted_at: float | None = None) -> Outcome:
        seen.append(spec)
        return Outcome(1, {}, None)  # type: ignore[arg-type]

    monkeypatch.setattr(submit, "submit", pretend)
    assert run("train", "-f", "job.yaml", "--num-workers=2:3", "--shuffle=false")[0] == 1
    assert (str(seen[0].num_workers), seen[0].seed, seen[0].shuffle) == ("2:3", 5, False)
    run("train", "--shuffle", "-f", "job.yaml")
    assert seen[1].shuffle is True


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--num-workers=3", "--", "sh", "my train", "--num_workers=5", "--", "-f"],
        ["run", "--num-workers=3", "sh", "my train", "--num_workers=5", "--", "-f"],
        ["run", "-f", "job.yaml"],
        ["run", "-f", "job.yaml", "--num_workers=3", "--", "sh", "my train", "--num_workers=5", "--", "-f"],
        ["train", "--num_workers=3", "--job_command=sh 'my train' --num_workers=5 -- -f"],
    ],
)
def test_words_of_a_command_are_the_program_s(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (here / "job.yaml").write_text("job_command: sh 'my train' --num_workers=5 -- -f\nnum_workers: 3\n")
    seen: list[JobSpec] = []

    def pretend(spec: JobSpec, submitted_at: float | None = None) -> Outcome:
        seen.append(spec)
        return Outcome(0, {}, None)  # type: ignore[arg-type]

    monkeypatch.setattr(submit, "submit", pretend)
    assert run(*arguments) == (0, "", "")
    assert seen[0].job_command == ("sh", "my train", "--num_workers=5", "--", "-f")
    assert seen[0].num_workers.maximum == 3
    assert (seen[0].job_name, seen[0].model_zoo) == ("sh", "")


def test_flags_that_change_nothing_are_accepted_with_a_note(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome(0, {}, None)  # type: ignore[arg-type]
    monkeypatch.setattr(submit, "submit", lambda *arguments: outcome)
    flags = [f"--{name}=Never" for name in refused.ACCEPTED] + ["--need-task-manager"]
    code, out, err = run("train", "--model_def=model.custom_model", "--training_data=data.csv", *flags)
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert len(lines) == len(refused.ACCEPTED)
    assert all(line.startswith("note: --") for line in lines)
    (yaml,) = (line for line in lines if line.startswith("note: --yaml"))
    assert "--dry_run -o yaml" in yaml


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "error: why\n"), (2, "error: why\n"), (130, "")])
def test_the_exit_code_is_the_jobs(run: Run, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    outcome = Outcome(code, {"reason": "why"}, None)  # type: ignore[arg-type]
    monkeypatch.setattr(submit, "submit", lambda *arguments: outcome)
    assert run("train", "--model_def=model.custom_model", "--training_data=data.csv") == (code, "", said)


def test_an_interrupt_before_the_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "submit", interrupt)
    assert run("train", "--model_def=model.custom_model", "--training_data=data.csv")[0] == 130


# ------------------------------------------------------------------ looking at jobs


def test_jobs_that_have_ended(run: Run, ended: JobPlace) -> None:
    code, out, _ = run("status", "b")
    assert code == 2  # named after the model's module
    code, out, _ = run("status", "a")
    assert code == 0
    assert out.splitlines() == [
        "job     a-1",
        "status  finished",
        "reason  all data was trained",
        "steps   7",
    ]
    code, out, _ = run("list")
    assert out.startswith("a-1  finished     1970-01-12")
    code, _, err = run("stop", "a-1")
    assert (code, err) == (2, "error: the job a-1 has ended; `elasticdl logs a-1` shows how\n")
    code, out, _ = run("list", "--prune")
    assert out == f"removed {ended.path}\n"
    assert run("list") == (0, "there are no jobs\n", "")


def test_a_job_whose_launcher_was_killed(run: Run, ended: JobPlace) -> None:
    ended.summary_path.unlink()
    said = "a-1 has ended without a summary: its launcher was killed; `elasticdl list --prune` removes what it left.\n"
    assert run("status", "a") == (1, said, "")
    assert "a-1  killed" in run("list")[1]


@pytest.mark.parametrize("closed", [False, True])
def test_what_a_killed_launcher_leaves_beside_the_output_is_pruned(
    run: Run, tmp_path: Path, closed: bool
) -> None:
    output = tmp_path / "predictions"
    wanted = {"model_def": "m.f", "prediction_data": "x", "trained_model": "y", "output": str(output)}
    spec = build(from_arguments(wanted), JobKind.PREDICT)
    place = places.create(spec)
    draft = predictions_draft(place, spec, place.key(Key.DATA))
    assert draft is not None
    draft.mkdir()
    (draft / "part").touch()
    other = draft.with_name(".predictions.0123456789abcdef.draft")
    other.mkdir()
    if closed:  # as the master does that has lost its launcher
        leave_mark(place)
        place.close()
    assert run("list", "--prune")[0] == 0
    assert [*tmp_path.glob(".predictions*")] == [other]


def test_a_running_job(run: Run, running: tuple[JobPlace, list[ServerEvent]]) -> None:
    code, out, _ = run("status", "up")
    assert code == 0
    assert out == (
        "up: training (2 workers)\n"
        "epoch 2/4, step 17, loss 0.1234, 513 records/s, 1 of 2 workers, 1:15 min left\n"
        "43% done\n"
        "  worker-0-1     training  pid 123\n"
        "  worker-1-2     joining\n"
    )
    assert "up-1  running" in run("list")[1]
    assert run("list", "--prune") == (0, "", "")


def test_stop_and_scale(run: Run, running: tuple[JobPlace, list[ServerEvent]]) -> None:
    _, asked = running
    assert run("stop", "up") == (0, "the job ends at the next step boundary\n", "")
    assert run("scale", "up", "--num-workers", "3") == (0, "[3] from now on\n", "")
    assert run("scale", "up", "--num_workers=9") == (2, "", "error: too many\n")
    assert run("scale", "up", "--num_ps_pods=4") == (0, "[4] from now on\n", "")
    assert run("scale", "up", "--num_ps_pods=4", "--num_workers=2") == (0, "[2, 4] from now on\n", "")
    assert isinstance(asked[0], StopWanted)
    said = [(one.workers, one.servers) for one in asked[1:] if isinstance(one, ScaleWanted)]
    assert said == [(3, None), (9, None), (None, 4), (2, 4)]


def test_a_master_that_is_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 0.0)
    place = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": "up"})))
    lock = place.hold()
    code, _, err = run("status", "up")
    assert code == 1
    assert "master does not answer" in err
    os.close(lock)


def test_a_job_that_ends_while_its_master_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": "up"})))
    lock, asked = place.hold(), []

    def ends(*_: object) -> None:
        asked.append(True)
        place.summary_path.write_text('{"job": "up-1", "status": "finished"}')
        os.close(lock)
        raise MasterAway("its master has ended")

    monkeypatch.setattr(asking, "JobClient", ends)
    assert run("status", "up") == (0, "job     up-1\nstatus  finished\n", "")
    assert asked == [True]


def test_a_master_that_is_starting_is_waited_for(run: Run) -> None:
    place = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": "up"})))
    lock = place.hold()
    servers: list[ControlServer] = []

    def begin() -> None:
        servers.append(ControlServer(place.control_address, place.token(), lambda event: None))
        servers[0].publish(JobStatus("up-1", "starting", "", 0, 0, 0, 1, None, None, 0, None, None, 2, ()))

    timer = threading.Timer(0.5, begin)
    timer.start()
    code, out, err = run("status", "up")
    timer.join()
    assert (code, err) == (0, "")
    assert out.startswith("up-1: starting\n")
    servers[0].close()
    os.close(lock)


# ------------------------------------------------------------------ logs


def test_logs_are_merged_by_time(run: Run, ended: JobPlace) -> None:
    ended.log_path("master-0-1").write_text(
        "2026-01-01 10:00:01,000 INFO one\n2026-01-01 10:00:03,000 INFO three\n"
    )
    ended.log_path("worker-0-1").write_text(
        "2026-01-01 10:00:02,000 ERROR two\nTraceback\n  more\n2026-01-01T10:00:04.5 four\nunfinished"
    )
    code, out, _ = run("logs", "a")
    assert code == 0
    assert out.splitlines() == [
        "master-0-1 | 2026-01-01 10:00:01,000 INFO one",
        "worker-0-1 | 2026-01-01 10:00:02,000 ERROR two",
        "worker-0-1 | Traceback",
        "worker-0-1 |   more",
        "master-0-1 | 2026-01-01 10:00:03,000 INFO three",
        "worker-0-1 | 2026-01-01T10:00:04.5 four",
        "worker-0-1 | unfinished",
    ]
    assert run("logs", "a", "--role=worker-0")[1].count("worker-0-1 |") == 5
    assert "master" not in run("logs", "a", "--role=worker")[1]
    assert run("logs", "a", "--role=work")[1] == ""


def test_logs_are_followed_until_the_job_ends(run: Run) -> None:
    place = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x"})))
    lock = place.hold()
    log = place.log_path("worker-0-1")
    log.write_text("one\ntw")

    def go_on() -> None:
        with log.open("a") as file:
            file.write("o\n")
        place.log_path("worker-1-1").write_text("new\n")
        os.close(lock)

    timer = threading.Timer(0.5, go_on)
    timer.start()
    _, out, _ = run("logs", "-f", "a")
    timer.join()
    assert out.splitlines() == ["worker-0-1 | one", "worker-0-1 | two", "worker-1-1 | new"]


def test_a_reader_that_leaves_is_no_error(ended: JobPlace) -> None:
    ended.log_path("worker-0-1").write_text("line\n" * 200_000)
    command = f"{sys.executable} -m elasticdl logs a | head -n 1"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert run.stdout == "worker-0-1 | line\n"
    assert run.stderr == ""


def test_output_that_finds_no_room_is_an_error_without_a_traceback(ended: JobPlace) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "elasticdl", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: the output can't be written: No space left on device\n",
    )
