"""The model zoo that travels with a job: what is packed, and what is refused."""

from __future__ import annotations

import io
import json
import os
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl._core import Endpoint
from elasticdl.cluster.kubernetes.podplace import ZOO_ARCHIVE, PodPlace, pack_zoo
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting
from elasticdl.spec.edge import build, from_arguments


def place_in(folder: Path) -> PodPlace:
    return PodPlace(
        "job", "default", "uid", 0.0, folder / "work", "127.0.0.1", "127.0.0.1",
        False, Identity(b"", b"", b""), folder / "job", folder / "secret",
    )  # fmt: skip


def test_of_a_link_its_file_is_packed(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (tmp_path / "shared.py").write_text("x = 1\n")
    (zoo / "model.py").symlink_to(tmp_path / "shared.py")
    packed = pack_zoo(zoo, 10_000)
    assert packed == pack_zoo(zoo, 10_000)
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        (entry,) = files
        content = files.extractfile(entry)
        assert entry.isfile()
        assert content is not None
        assert content.read() == b"x = 1\n"


@pytest.mark.parametrize("given", ["my_zoo", "my_zoo/", "my_zoo/parts/..", "linked_zoo"])
def test_a_zoo_has_its_name_in_pods_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_zoo" / "parts").mkdir(parents=True)
    (tmp_path / "my_zoo" / "parts" / "model.py").write_text("x = 1\n")
    (tmp_path / "linked_zoo").symlink_to("my_zoo")
    for folder in ("job", "work"):
        (tmp_path / folder).mkdir()
    asked = build(
        from_arguments({"model_zoo": given, "model_def": "parts.model.x", "training_data": "/data"})
    )
    (tmp_path / "job" / ZOO_ARCHIVE).write_bytes(pack_zoo(Path(given), 10_000))
    (tmp_path / "job" / "spec.json").write_text(json.dumps(asked.to_json()))
    place = place_in(tmp_path)
    zoo = Path(place.spec().model_zoo)
    assert place.spec().model_zoo == str(zoo)  # the second time it is there
    assert zoo.name == ("linked_zoo" if given == "linked_zoo" else "my_zoo")
    assert (zoo / "parts" / "model.py").read_text() == "x = 1\n"


def test_packing_ends_at_the_first_file_that_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(os.urandom(300_000))
    (tmp_path / "b.py").write_bytes(os.urandom(300_000))
    (tmp_path / "c.py").symlink_to("/proc/self/mem")  # nobody gets as far as this
    with pytest.raises(BadSetting, match=r"more than the 400,000 bytes .* \(up to b.py\)"):
        pack_zoo(tmp_path, 400_000)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to("/proc/self/mem")
    with pytest.raises(BadSetting, match=r"a.py can't be read: "):
        pack_zoo(tmp_path, 1000)


def test_pods_of_one_node_reach_a_worker_by_its_socket_too(tmp_path: Path) -> None:
    member = "0123456789abcdef" * 2
    place = place_in(tmp_path)
    assert place.data_address(member) == "tcp:127.0.0.1:0"
    beside = replace(place, node_folder=tmp_path)
    address = beside.data_address(member)
    assert address == f"tcp:127.0.0.1:0+unix:{tmp_path}/0123456789abcdef"
    with closing(Endpoint(address, member, b"the job's token")) as endpoint:
        assert endpoint.address.endswith(f"+unix:{tmp_path}/0123456789abcdef")
