"""Who reads what others have written, and the errors by which that may end; whatever else comes out is a defect."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from google.protobuf.message import DecodeError

from elasticdl.audit import records
from elasticdl.checkpoint import manifest
from elasticdl.cluster.local import wire
from elasticdl.control.generated.control_pb2 import FromMember
from elasticdl.control.protocol import codec, metricstates
from elasticdl.control.protocol.psmessages import PsMemberMessage
from elasticdl.control.transport.credentials import Admitted
from elasticdl.control.transport.keys import Key
from elasticdl.control.transport.rights import objection
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.imagefiles import wrong_with
from elasticdl.data.readers.reader import BadRecords, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.errors import AuditFailed, BadData, BadInput
from elasticdl.files import reading
from elasticdl.master.core.events import Refuse
from tests.fuzz.mutation import damage, lie, text
from tests.master import grouprig, psrig

CORPUS = Path(__file__).with_name("corpus")


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        name: also of its folder in the corpus.
        read: reads bytes, with a folder of its own for files.
        refuses: the errors that say that it is none of ours.
        seal: makes bytes of a JSON object, with the checksum that it should have; None: it reads no such.
    """

    name: str
    read: Callable[[bytes, Path], object]
    refuses: tuple[type[Exception], ...]
    seal: Callable[[dict[str, Any]], bytes] | None = None

    def takes(self, given: bytes) -> bool:
        """Read, and tell whether it was taken. Raises what is not to be raised."""
        with tempfile.TemporaryDirectory(prefix="edl-fuzz-") as folder:
            try:
                self.read(given, Path(folder))
            except self.refuses:
                return False
            return True

    def seeds(self) -> list[bytes]:
        """Return its corpus."""
        return [file.read_bytes() for file in sorted((CORPUS / self.name).iterdir())]

    def case(self, number: int) -> bytes:
        """Return the damaged bytes of this number."""
        draw = random.Random(f"{self.name} {number}")
        seed = draw.choice(self.seeds())
        if self.seal is not None and draw.random() < 0.7:
            try:
                body = json.loads(seed)
            except (ValueError, RecursionError):
                body = None
            if isinstance(body, dict):
                changed = lie(draw, body)
                try:
                    return self.seal(changed)
                except (UnicodeEncodeError, RecursionError):
                    return text(changed)
        return damage(draw, seed)


def _sealed(body: dict[str, Any]) -> bytes:
    body.pop("checksum", None)
    written = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return text({**body, "checksum": f"{zlib.crc32(written):08x}"})


def _read_checkpoint(given: bytes, folder: Path) -> object:
    path = folder / manifest.NAME
    path.write_bytes(given)
    found = manifest.read_manifest(path)
    return found.sizes(), found.is_between_tasks


def _read_requests(given: bytes, folder: Path) -> object:
    buffer = bytearray(given)
    return [wire.read_request(line) for line in wire.cut_lines(buffer)]


def _read_events(given: bytes, folder: Path) -> object:
    buffer = bytearray(given)
    return [wire.read_event(line) for line in wire.cut_lines(buffer)]


def _read_audit(given: bytes, folder: Path) -> object:
    path = folder / "worker-0-00.audit"
    path.write_bytes(_checked(given))
    return list(records.File(path, path.stat().st_size).entries())


def _checked(given: bytes) -> bytes:
    """Give lines that have no checksum the one that they should have, so that what they say is looked at."""
    found, checksum = [], 0
    for line in given.split(b"\n")[:-1]:
        checksum = zlib.crc32(line, checksum)
        found.append(b"%s %08x\n" % (line, checksum))
    return b"".join(found)


class Refused(Exception):
    """A master has refused who said it."""


def _read_member(given: bytes, folder: Path) -> object:
    """Say what the bytes mean to both masters of a job that trains; refused by the one that such members have."""
    server = Admitted(Key.PS, "ps-0-1", psrig.member("ps-0-1"), ())
    rig, desk = psrig.Rig(), grouprig.group("a", "b")
    rig.start("worker-0-1")
    messages = list(codec.decode_said(FromMember.FromString(given)))
    for message in messages:
        is_serving = isinstance(message, get_args(PsMemberMessage))
        rig.say("ps-0-1" if objection(server, message) is None else "worker-0-1", message)
        rig.tick()
        said = desk.say("a", message)
        desk.wait(0.1)
        refusals = rig.refused if is_serving else [one for one in said if isinstance(one, Refuse)]
        if refusals:
            raise Refused(refusals[0])
    return messages


def _read_damaged_audit(given: bytes, folder: Path) -> object:
    path = folder / "worker-0-00.audit"
    path.write_bytes(given)
    return list(records.File(path, path.stat().st_size).entries())


def _read_marks(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def reads(given: bytes, folder: Path) -> object:
        (folder / name).write_bytes(given)
        return read(folder)

    return reads


def _read_metrics(given: bytes, folder: Path) -> object:
    found = metricstates.MetricCatalog.from_json(reading.load(given))
    state = metricstates.unpack(found.task_arrays(), bytes(found.nbytes))
    return metricstates.combine(found, [state, state])


def _line(body: dict[str, Any]) -> bytes:
    return text(body) + b"\n"


PIXELS = b"GIF89a;"
"""The least that is taken for an image."""


def _read_images(name: str, params: dict[str, Any]) -> Callable[[bytes, Path], object]:
    """Return what reads images of which a file of this name says what is in them."""

    def reads(given: bytes, folder: Path) -> object:
        (folder / "images").mkdir()
        for image in ("a.png", "b.png"):
            (folder / "images" / image).write_bytes(PIXELS)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(given)
        return _all_records(folder / "images", params, folder)

    return reads


def _all_records(origin: Path, params: dict[str, Any], folder: Path) -> object:
    reader = open_reader(str(origin), params, folder / "job", BadRecords(1000))
    return [
        reader.read(
            Task(0, 0, shard, shard.start, shard.start + shard.count),
            range(shard.start, shard.start + shard.count),
        )
        for shard in shards_of(reader)
    ]


def _read_image(given: bytes, folder: Path) -> object:
    if wrong := wrong_with(given):
        raise BadData(wrong)
    return None


def _read_gzip(given: bytes, folder: Path) -> object:
    (folder / "data.csv.gz").write_bytes(given)
    return _all_records(folder / "data.csv.gz", {}, folder)


TARGETS = {
    target.name: target
    for target in (
        Target("checkpoint", _read_checkpoint, (BadData,), _sealed),
        Target("requests", _read_requests, (wire.Malformed,), _line),
        Target("events", _read_events, (wire.Malformed,), _line),
        Target("metrics", _read_metrics, (ValueError,), text),
        Target("member", _read_member, (DecodeError, codec.Malformed, Refused)),
        Target("audit", _read_audit, (AuditFailed,)),
        Target("damaged-audit", _read_damaged_audit, (AuditFailed,)),
        Target(
            "audit-manifest",
            _read_marks("manifest", records.read_manifest),
            (AuditFailed, BadInput),
            _sealed,
        ),
        Target("image", _read_image, (BadData,)),
        Target("image-list", _read_images("list", {"annotations": "../list"}), (BadData,)),
        Target("coco", _read_images("x.json", {"annotations": "../x.json"}), (BadData,), text),
        Target("voc", _read_images("notes/a.xml", {"annotations": "../notes"}), (BadData,)),
        Target("gzip", _read_gzip, (BadData,)),
        Target("audit-finished", _read_marks("finished", records.read_finished), (AuditFailed,), _sealed),
        Target("audit-beginning", _read_marks("beginning", records.read_beginning), (AuditFailed,), _sealed),
    )
}


def try_case(target: Target, number: int) -> None:
    """Read one damaged input; with what came out, say where it can be had again."""
    given = target.case(number)
    try:
        target.takes(given)
    except Exception as error:
        error.add_note(f"{target.name}, case {number}: {given[:200]!r}")
        raise


def keep(target: Target, given: bytes) -> Path:
    """Write an input that should have been refused to the corpus, under a name that says what it is."""
    path = CORPUS / target.name / f"refused-{zlib.crc32(given):08x}"
    path.write_bytes(given)
    print(path, file=sys.stderr)
    return path
