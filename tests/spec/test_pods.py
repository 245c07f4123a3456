"""The small grammars of pods."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.spec import pods
from elasticdl.spec.pods import Priority, Volume

variables = st.dictionaries(
    st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True),
    st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs"])).map(str.strip),
)


@given(variables)
def test_variables_are_read_back(values: dict[str, str]) -> None:
    assert pods.environment(pods.resources_text(values)) == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1,2,B=3", {"A": "1,2", "B": "3"}),
        ("A=1,2,,3 , B = x=y,z", {"A": "1,2,,3", "B": "x=y,z"}),
        ("A=1,", {"A": "1"}),
        (r"A=1\,B=2,C=3", {"A": "1,B=2", "C": "3"}),
        ("A=,B=,", {"A": "", "B": ""}),
    ],
)
def test_commas_inside_values(text: str, values: dict[str, str]) -> None:
    assert pods.environment(text) == values


@pytest.mark.parametrize(
    ("text", "said"),
    [("1,A=2", "'1' is not of the form name=value"), ("A=1,2B=3", "'2B' is no name"), ("A=1,=3", "'=3'")],
)
def test_what_is_no_variable(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pods.environment(text)


def test_resources() -> None:
    assert pods.resources("cpu=500m, memory=2Gi,gpu=1,vendor.com/card=2") == {
        "cpu": "500m",
        "memory": "2Gi",
        "nvidia.com/gpu": "1",
        "vendor.com/card": "2",
    }


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("cpu", "'cpu' is not of the form name=value"),
        ("cores=2", "'cores' is no resource"),
        ("cpu=two", "'two'"),
        ("memory=2GB", "'2GB'"),
        ("cpu=1,cpu=2", "'cpu' is given twice"),
        ("gpu=1,nvidia.com/gpu=2", "given twice"),
        ("gpu=500m", "whole pieces"),
        ("cpu=-1", "'-1'"),
    ],
)
def test_bad_resources(text: str, piece: str) -> None:
    with pytest.raises(ValueError, match=piece):
        pods.resources(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", "2"), ("500m", "0.5"), ("1.5Gi", str(3 * 2**29)), ("1k", "1000"), ("3Ti", str(3 * 2**40))],
)
def test_amounts(text: str, amount: str) -> None:
    assert pods.amount(text) == Decimal(amount)


def test_volumes() -> None:
    text = (
        "claim_name=c,mount_path=/data,sub_path=p; host_path=/x,mount_path=/y/,type=Directory;"
        "secret=s,mount_path=/s,read_only=true;nfs=server:/export,mount_path=/nfs;empty_dir=memory,mount_path=/m;"
        r"host_path=/a\,b,mount_path=/c"
    )
    found = pods.volumes(text)
    assert found == (
        Volume("claim_name", "c", "/data", sub_path="p"),
        Volume("host_path", "/x", "/y", type="Directory"),
        Volume("secret", "s", "/s", read_only=True),
        Volume("nfs", "server:/export", "/nfs"),
        Volume("empty_dir", "memory", "/m"),
        Volume("host_path", "/a,b", "/c"),
    )
    assert pods.volumes(pods.volumes_text(found)) == found


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("mount_path=/a", "exactly one of"),
        ("claim_name=c,host_path=/x,mount_path=/a", "exactly one of"),
        ("claim_name=c", "mount_path"),
        ("claim_name=c,mount_path=a", "mount_path"),
        ("claim_name=c,mount_path=/", "mount_path"),
        ("claim_name=c,mount_path=/a;claim_name=d,mount_path=/a", "two volumes are mounted at '/a'"),
        ("claim_name=C!,mount_path=/a", "name of an object"),
        ("host_path=x,mount_path=/a", "absolute path"),
        ("nfs=server,mount_path=/a", "SERVER:/PATH"),
        ("empty_dir=fast,mount_path=/a", "disk or memory"),
        ("claim_name=c,mount_path=/a,type=Directory", "type"),
        ("claim_name=c,mount_path=/a,sub_path=../b", "stay inside"),
        ("claim_name=c,mount_path=/a,read_only=maybe", "true or false"),
        ("claim=c,mount_path=/a", "'claim'"),
        ("claim_name=c,claim_name=d,mount_path=/a", "twice"),
    ],
)
def test_bad_volumes(text: str, piece: str) -> None:
    with pytest.raises(ValueError, match=piece):
        pods.volumes(text)


@pytest.mark.parametrize(
    ("share", "high"), [("0", 0), ("0.5", 3), ("0.2", 1), ("0.21", 2), ("1", 5), ("1.0", 5)]
)
def test_the_share_of_high_priority_is_rounded_up(share: str, high: int) -> None:
    given = pods.priority(share)
    assert [given.of(index, 5) for index in range(5)] == ["high"] * high + ["low"] * (5 - high)
    assert pods.priority(str(given)) == given


def test_a_class_is_for_all() -> None:
    assert pods.priority("batch-low") == Priority(name="batch-low")
    assert pods.priority("batch-low").of(3, 5) == "batch-low"
    assert pods.priority("") == Priority()


@pytest.mark.parametrize("text", ["1.5", "-0.5", "0.5.5", "High", "a b"])
def test_bad_priorities(text: str) -> None:
    with pytest.raises(ValueError, match=r"no share|no name"):
        pods.priority(text)
