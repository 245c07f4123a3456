"""Waiting for storage that does not answer: how long, how often, and what is said."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from elasticdl.data.readers.patience import Patience, Silence, may_pass, pause
from elasticdl.errors import StorageAway


@dataclass
class Storage:
    """Storage that is silent for a while, and a clock that knows only waiting."""

    silent: float
    error: Exception = field(default_factory=lambda: ConnectionError("refused"))
    now: float = 0.0
    tries: int = 0
    notes: list[tuple[str, bool]] = field(default_factory=list)
    beats: int = 0

    def ask(self) -> str:
        self.tries += 1
        if self.now < self.silent:
            raise self.error
        return "content"

    def beat(self) -> None:
        self.beats += 1

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def patience(self, seconds: float) -> Patience:
        return Patience(
            seconds, lambda *note: self.notes.append(note), self.beat, lambda: self.now, self.wait
        )


def test_storage_that_answers() -> None:
    storage = Storage(0)
    assert storage.patience(300).call("s3://bucket", storage.ask) == "content"
    assert (storage.notes, storage.beats, storage.now) == ([], 0, 0)


def test_storage_that_comes_back() -> None:
    storage = Storage(100)
    assert storage.patience(300).call("s3://bucket", storage.ask) == "content"
    assert storage.notes == [
        ("waiting for s3://bucket, for 300 s at most: ConnectionError: refused", True),
        ("s3://bucket answers again, after 106 s", False),
    ]
    assert storage.tries == 12
    assert storage.beats == 106  # a sign of life each second


def test_storage_that_stays_away() -> None:
    storage = Storage(1000)
    with pytest.raises(
        StorageAway,
        match=r"s3://bucket has not answered for 300 s \(ConnectionError: refused\); --storage_seconds",
    ):
        storage.patience(300).call("s3://bucket", storage.ask)
    assert storage.now == 300
    assert len(storage.notes) == 1


def test_each_silence_of_what_takes_long_is_waited_for_anew() -> None:
    storage = Storage(100)
    patience = storage.patience(120)
    silence = Silence(patience, "the database")
    outages = iter([100.0, 100.0])

    def ask() -> str:
        if storage.now < storage.silent:
            raise storage.error
        silence.answered()
        storage.now += 1000
        silence.answered()  # an answer on the way
        storage.silent = storage.now + next(outages, 0)
        return storage.ask()

    assert patience.call("the database", ask, silence=silence) == "content"
    waits, answers = "waiting for the database, for 120 s at most", "the database answers again"
    assert [text.startswith(waits if waiting else answers) for text, waiting in storage.notes] == [True] * 6
    assert [waiting for _, waiting in storage.notes] == [True, False] * 3


def test_what_is_broken_off_for_ever_ends() -> None:
    storage = Storage(math.inf)
    patience = storage.patience(120)
    silence = Silence(patience, "the database")

    def ask() -> str:
        silence.answered()
        return storage.ask()

    with pytest.raises(StorageAway, match=r"the database has broken off 11 times .*refused.*; find out why"):
        patience.call("the database", ask, silence=silence)


def test_one_request_that_takes_long() -> None:
    storage = Storage(0)
    silence = Silence(storage.patience(10), "the database")
    for _ in range(100):
        silence.lasts()
        storage.now += 1
    assert storage.beats == 100
    silence.answered()
    # it is no silence, also if it ends badly
    for _ in range(100):
        silence.lasts()
        storage.now += 1
    assert silence.failed(ConnectionError("broken")) == 0.5
    assert storage.notes[3:] == [
        ("waiting for the database, for 10 s at most: ConnectionError: broken", True)
    ]
    del storage.notes[2:]
    assert storage.notes == [
        ("waiting for the database, which has been at one request for 30 s", True),
        ("the database answers again, after 100 s", False),
    ]


def test_what_no_other_try_changes() -> None:
    storage = Storage(1000, FileNotFoundError("x"))
    with pytest.raises(FileNotFoundError):
        storage.patience(300).call("s3://bucket", storage.ask)
    assert (storage.tries, storage.notes) == (1, [])


def test_keys_that_are_not_there_and_answers_that_were_translated() -> None:
    class NoCredentialsError(Exception):
        """As botocore raises it."""

    translated, answer = OSError(22, "the region is wrong"), RuntimeError("x")
    answer.response = {"ResponseMetadata": {"HTTPStatusCode": 400}}  # type: ignore[attr-defined]
    translated.__cause__ = answer
    assert not may_pass(NoCredentialsError())
    assert not may_pass(translated)
    translated.__cause__ = ConnectionError()
    assert may_pass(translated)


@pytest.mark.parametrize(
    ("status", "passes"), [(403, False), (404, False), (408, True), (429, True), (500, True), (503, True)]
)
def test_answers_of_http(status: int, passes: bool) -> None:
    error, of_s3 = RuntimeError("x"), RuntimeError("x")
    error.status = status  # type: ignore[attr-defined]
    of_s3.response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    for answer in (error, of_s3):
        assert may_pass(answer) is passes
        missing = FileNotFoundError("x")
        missing.__cause__ = answer
        assert may_pass(missing) is passes


def test_pauses_grow_and_end_with_patience() -> None:
    assert [pause(0, tries, 300) for tries in (1, 2, 3, 6, 1000)] == [0.5, 1, 2, 15, 15]
    assert pause(299, 9, 300) == 1
    assert pause(300, 9, 300) is None
