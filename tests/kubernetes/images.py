"""Images as archives that containerd takes: the smallest there is, and those of buildah without what a node has already."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Set
from pathlib import Path
from typing import IO

_OCI = "application/vnd.oci.image"


def of_one_program(program: Path, name: str, archive: Path) -> None:
    """Write the image `name` that runs `program`, in the format of `docker save`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        entry = tarfile.TarInfo(program.name)
        content = program.read_bytes()
        entry.size, entry.mode = len(content), 0o755
        files.addfile(entry, io.BytesIO(content))
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": "65534"},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"],
            },
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, mode="w") as whole:
        for path, body in {
            "layer.tar": layer.getvalue(),
            "config.json": configuration,
            "manifest.json": json.dumps(manifest).encode(),
        }.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(body)
            whole.addfile(entry, io.BytesIO(body))


def convert(whole: IO[bytes], name: str, archive: Path, held: Set[str]) -> None:
    """Write an image that comes in the format of `docker save` in that of the OCI, in which layers may be missing.

    Args:
        whole: the image, which is only read forward.
        name: of the image.
        archive: what is written.
        held: SHA-256 digests of the layers to leave out.
    """
    sizes: dict[str, int] = {}
    texts: dict[str, bytes] = {}
    with tarfile.open(fileobj=whole, mode="r|") as read, tarfile.open(archive, mode="w") as written:
        for entry in read:
            content = read.extractfile(entry) if entry.isreg() else None
            digest, _, kind = entry.name.partition(".")
            if content is not None and kind == "json":
                texts[entry.name] = content.read()
            elif content is not None and kind == "tar":
                sizes[digest] = entry.size
                if digest not in held:
                    _add(written, _blob(digest), content, entry.size)
        (listed,) = json.loads(texts["manifest.json"])
        configuration = texts[listed["Config"]]
        layers = [
            digest.removeprefix("sha256:") for digest in json.loads(configuration)["rootfs"]["diff_ids"]
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor("config.v1+json", configuration),
            "layers": [
                {"mediaType": f"{_OCI}.layer.v1.tar", "digest": f"sha256:{layer}", "size": sizes[layer]}
                for layer in layers
            ],
        }
        body = json.dumps(manifest).encode()
        described = _descriptor("manifest.v1+json", body)
        index = {
            "schemaVersion": 2,
            "manifests": [{**described, "annotations": {"io.containerd.image.name": name}}],
        }
        for path, text in {
            _blob(hashlib.sha256(configuration).hexdigest()): configuration,
            _blob(hashlib.sha256(body).hexdigest()): body,
            "index.json": json.dumps(index).encode(),
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        }.items():
            _add(written, path, io.BytesIO(text), len(text))


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _descriptor(kind: str, body: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return {"mediaType": f"{_OCI}.{kind}", "digest": digest, "size": len(body)}


def _add(archive: tarfile.TarFile, path: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = size
    archive.addfile(entry, content)
