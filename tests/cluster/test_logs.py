"""A log that is followed continues where its stream broke off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from elasticdl.cluster.kubernetes.api import Api


@pytest.mark.parametrize("zone", ["Z", "+09:00"])
def test_only_lines_after_a_time_are_told_again(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    asked: list[dict[str, str]] = []
    lines = [
        f"2026-01-02T03:04:05.000000001{zone} one",
        f"2026-01-02T03:04:05.000000002{zone} two",
        f"2026-01-02T03:04:06.000000000{zone} ",
        f"2026-01-02T03:04:06.500000000{zone} and four",
    ]

    def answer(path: str, query: Sequence[tuple[str, str]], seconds: float) -> Iterator[bytes]:
        asked.append(dict(query))
        yield from (line.encode() for line in lines)

    api = object.__new__(Api)
    monkeypatch.setattr(api, "_path", lambda kind, name: name, raising=False)
    monkeypatch.setattr(api, "_lines", answer, raising=False)
    assert [text for _, text in api.follow_log("pod", "worker")] == ["one", "two", "", "and four"]
    assert [text for _, text in api.follow_log("pod", "worker", lines[1].split()[0])] == ["", "and four"]
    assert "sinceTime" not in asked[0]
    assert asked[1]["sinceTime"] == f"2026-01-02T03:04:05{zone}"
    assert asked[1]["container"] == "worker"
