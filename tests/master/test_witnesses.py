"""Who is suspected, and when."""

from __future__ import annotations

from elasticdl.master.core.witnesses import (
    Accusation,
    Statement,
    Times,
    Witness,
    judge,
    loser,
    mutual_suspicions,
    stall_limit,
)

TIMES = Times()


def test_nobody_is_suspected_without_a_witness() -> None:
    assert judge(100.0, (), TIMES) is None


def test_two_witnesses_are_enough_at_once() -> None:
    said = (Statement(Witness.STREAM, 10.0), Statement(Witness.ACCUSED, 10.0))
    assert judge(10.0, said, TIMES) is not None
    assert judge(9.9, said, TIMES) is None


def test_one_witness_alone_waits() -> None:
    said = (Statement(Witness.BEAT, 10.0),)
    assert judge(14.9, said, TIMES) is None
    why = judge(15.0, said, TIMES)
    assert why == "its heartbeats are missing for 5.0 s"


def test_two_statements_of_one_kind_are_one_witness() -> None:
    said = (Statement(Witness.ACCUSED, 10.0), Statement(Witness.ACCUSED, 10.0))
    assert judge(11.0, said, TIMES) is None


def test_a_stall_has_waited_already() -> None:
    assert judge(70.0, (Statement(Witness.STALL, 70.0),), TIMES) is not None
    assert judge(69.9, (Statement(Witness.STALL, 70.0),), TIMES) is None


def test_the_stall_limit_grows_with_the_steps() -> None:
    assert stall_limit((), TIMES) == 60.0
    assert stall_limit((1.0, 2.0, 3.0), TIMES) == 60.0
    assert stall_limit((10.0, 20.0, 30.0), TIMES) == 200.0


def test_those_who_accuse_each_other_are_the_feud() -> None:
    accusations = (Accusation("a", "b"), Accusation("b", "a"), Accusation("c", "a"))
    assert mutual_suspicions(accusations) == {frozenset({"a", "b"})}
    assert mutual_suspicions(()) == frozenset()


def test_one_sided_accusations_count_where_none_is_mutual() -> None:
    assert mutual_suspicions((Accusation("a", "b"),)) == {frozenset({"a", "b"})}


def test_the_one_with_more_accusers_is_left_out_or_the_younger() -> None:
    pair = frozenset({"a", "b"})
    mutual = (Accusation("a", "b"), Accusation("b", "a"))
    assert loser(pair, mutual, ("b", "a")) == "a"
    assert loser(pair, mutual, ("a", "b")) == "b"
    assert loser(pair, (*mutual, Accusation("c", "a")), ("a", "b")) == "a"
