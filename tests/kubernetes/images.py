"""The smallest image there is: one static program and nothing else, as an archive that containerd takes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path


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
