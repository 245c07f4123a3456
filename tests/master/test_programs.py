"""How the user's own program may end as a worker, and how long it may take before anything is heard of it."""

from __future__ import annotations

import pytest

from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED, Blame, ProcessEnded, ProcessName, Role
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.processes.programs import why_fault, with_cause
from elasticdl.master.processes.replicas import GiveUp, Joined, Launch, ReplicaSet, Tick, Unready, decide
from elasticdl.master.processes.starting import Overdue, Start, overdue
from tests.master.test_starting import LIMITS

WORKER = ProcessName(Role.WORKER, 0, 1)
ASKS = "(does train.py call elasticdl.init() or elasticdl.shards()?)"


def why(
    code: int | None,
    *,
    connected: bool,
    evicted: bool = False,
    released: bool = False,
    blame: Blame = Blame.PROGRAM,
    by: int | None = None,
) -> str:
    ended = ProcessEnded(WORKER, code, by, blame)
    return why_fault("train.py", ended, connected=connected, evicted=evicted, released=released)


@pytest.mark.parametrize(
    ("code", "asks"), [(FINISHED, True), (EVICTED, True), (RELEASED, True), (1, False), (2, False)]
)
def test_before_it_is_connected_every_code_is_a_fault(code: int, asks: bool) -> None:
    said = why(code, connected=False)
    assert said.startswith(f"has ended with exit code {code} before it was connected to the job")
    assert said.endswith(ASKS) is asks


@pytest.mark.parametrize("code", [FINISHED, EVICTED, RELEASED])
def test_a_code_that_the_master_has_not_told_is_a_fault(code: int) -> None:
    assert why(code, connected=True) == (
        f"has ended with exit code {code} before the job was over, and has not said why (does train.py, or a library that it uses, call "
        f"os._exit({code})? Let the loop run to its end, or raise an exception)"
    )


def test_a_code_that_the_master_has_told_is_none() -> None:
    assert why(EVICTED, connected=True, evicted=True) == ""
    assert why(RELEASED, connected=True, released=True) == ""
    assert why(RELEASED, connected=True, evicted=True) != ""
    assert why(EVICTED, connected=True, released=True) != ""


def test_a_program_that_always_ends_as_if_it_was_told_to_leave_is_given_up() -> None:
    state, _, _ = decide(0.0, ReplicaSet(1, 1), Tick())
    for life in (1, 2):
        name = ProcessName(Role.WORKER, 0, life)
        state, _, _ = decide(10.0 * life, state, Joined(name))
        state, _, _ = decide(10.0 * life, state, Unready(name, why(RELEASED, connected=True)))
        state, said, reason = decide(10.0 * life, state, ProcessEnded(name, RELEASED, None))
        assert "exit code 75" in reason
        if life == 1:
            assert said == (Launch(ProcessName(Role.WORKER, 0, 2)),)
    (given_up,) = said
    assert isinstance(given_up, GiveUp)
    assert "os._exit(75)" in given_up.reason
    assert "worker 0 has failed 2 times" in given_up.reason


def test_what_no_program_does_is_none() -> None:
    assert why(None, connected=False, by=15) == ""
    assert why(126, connected=False, blame=Blame.START) == ""


def test_it_is_said_why_the_job_gives_up() -> None:
    state, _, _ = decide(0.0, ReplicaSet(1, 0), Tick())
    state, _, _ = decide(1.0, state, Unready(WORKER, why(EVICTED, connected=False)))
    _, (said,), _ = decide(1.0, state, ProcessEnded(WORKER, EVICTED, None))
    assert isinstance(said, GiveUp)
    assert f"before it was connected to the job {ASKS}: worker 0 has failed 1 times" in said.reason


def test_a_later_life_does_not_inherit_the_fault() -> None:
    state, _, _ = decide(0.0, ReplicaSet(1, 1), Tick())
    state, _, _ = decide(1.0, state, ProcessEnded(WORKER, None, 9))
    state, _, _ = decide(1.0, state, Unready(WORKER, "has ended"))  # said of a life that has ended before
    state, started, _ = decide(60.0, state, Tick())
    assert started == (Launch(ProcessName(Role.WORKER, 0, 2)),)
    state, _, _ = decide(61.0, state, ProcessEnded(ProcessName(Role.WORKER, 0, 2), None, 9))
    assert state.replicas[0].faults == 0


def test_a_program_has_the_time_of_a_start_to_call_init() -> None:
    limits = replace(LIMITS, program="train.py")
    silent, connected = Start(since=100.0), Start(since=100.0, member=MemberId("m"))
    assert overdue(699.9, {"worker-0-1": silent}, limits) == []
    (found,) = overdue(700.0, {"worker-0-1": silent}, limits)
    reason = "train.py has not called elasticdl.init() after 600 s (start_seconds)"
    assert found == Overdue("worker-0-1", reason, hangs=False)
    (found,) = overdue(160.0, {"worker-0-1": connected}, limits)
    assert found.hangs  # nothing is heard of one that is connected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("/env/bin/python3.11: No module named trian\n", "No module named trian: "),
        (
            "python: can't open file '/w/trian.py': [Errno 2] No such file or directory",
            "can't open file '/w/trian.py': [Errno 2] No such file or directory: ",
        ),
        (
            "Traceback (most recent call last):\n  File ...\nModuleNotFoundError: No module named 'jxa'\n",
            "ModuleNotFoundError: No module named 'jxa': ",
        ),
        (
            "  File ...\n    bool = onp.bool\n           ^^^^^^^^\nAttributeError: no 'bool'.\n`np.bool` was an alias.\n    https://numpy.org\n",
            "AttributeError: no 'bool'.: ",
        ),
        ("ValueError: printed, and no cause\nall is well\n", ""),
        ("did nothing\n", ""),
        ("", ""),
    ],
)
def test_what_python_said_comes_first(words: str, said: str) -> None:
    assert with_cause("worker 0 has failed 2 times", words) == f"{said}worker 0 has failed 2 times"
