"""The large layers of the tests' image as containerd keeps them, unpacked once and lent to each node.

Nobody writes to a layer, so nodes have the same files as links: giving a node two gigabytes, and taking them away again, is a matter of
names. `python -m tests.kubernetes.layers` makes what is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from . import binaries, image
from .processes import Component, alone, wait_for

_SECONDS = 60.0
_IMPORT_SECONDS = 600.0


def prepare() -> Path:
    """Return the root of a containerd that has the image of packages, made if it is not there; gigabytes, which takes minutes."""
    kept = binaries.cache() / "test-layers"
    with alone(kept / "lock"), tempfile.TemporaryDirectory(prefix="elasticdl-layers-") as folder:
        name = image.packages(Path(folder))
        target = kept / name.rpartition(":")[2]
        if target.exists():
            return target
        for other in kept.iterdir():
            if other.is_dir():
                shutil.rmtree(other)
        archive, draft = Path(folder) / "packages.tar", kept / "draft"
        image.write(name, archive)
        _unpack(archive, draft, Path(folder))
        draft.rename(target)
        return target


def digests(layers: Path) -> frozenset[str]:
    """Return the SHA-256 digests of what is there."""
    blobs = layers / "io.containerd.content.v1.content/blobs/sha256"
    return frozenset(path.name for path in blobs.iterdir())


def lend(layers: Path, root: Path) -> None:
    """Make the root of a node's containerd with these layers; what it will change is a copy."""
    same = layers.stat().st_dev == root.parent.stat().st_dev
    command = ["cp", "--archive", *(["--link"] if same else []), str(layers), str(root)]
    subprocess.run(command, check=True)
    for database in root.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.replace(database)


def _unpack(archive: Path, root: Path, folder: Path) -> None:
    """Let a containerd of its own take an archive."""
    socket, configuration = folder / "containerd.sock", folder / "containerd.toml"
    configuration.write_text(
        f'''
version = 2
root = "{root}"
state = "{folder}/run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{socket}"
'''
    )
    client = ["ctr", "--address", str(socket), "--namespace", "k8s.io"]
    process = Component(
        "containerd", ["containerd", "--config", str(configuration)], folder / "containerd.log"
    )
    process.start()
    try:
        wait_for(
            "containerd",
            lambda: subprocess.run([*client, "version"], capture_output=True, check=False).returncode == 0,
            _SECONDS,
            (process,),
        )
        subprocess.run(
            [*client, "images", "import", str(archive)],
            check=True,
            capture_output=True,
            timeout=_IMPORT_SECONDS,
        )
    finally:
        process.stop()


if __name__ == "__main__":
    print(f"the layers of the tests' image: {prepare()}")
