"""Which checkpoint a path means: its own, or of a directory of them the newest that is not damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elasticdl.checkpoint.comparing import compare
from elasticdl.checkpoint.group import GroupManifest
from elasticdl.checkpoint.layout import AnyManifest, candidates
from elasticdl.checkpoint.manifest import Manifest, OtherKind
from elasticdl.errors import BadData, BadSetting


def check_has_model(folder: Path, manifest: Manifest | GroupManifest, flag: str) -> None:
    """Refuse the checkpoint of a custom training loop where that of a model is needed. Raises BadSetting; `flag` as in `newest_whole`."""
    if manifest.dealing.by_record:
        raise BadSetting(
            f"{flag}: {folder} is of a program with a custom training loop, which writes its result itself, by job.result(write): "
            f"go on from there with `elasticdl run --checkpoint_dir_for_init={folder} --output=RESULT -- python train.py`"
        )


def newest_whole(
    path: str, read: Callable[[Path], AnyManifest], flag: str, *, verify: bool = True
) -> tuple[Path, AnyManifest, str]:
    """Return the folder of the checkpoint that a path means, its manifest, and what is said of newer ones that are damaged.

    Args:
        path: of a checkpoint, or of a directory of them.
        read: reads the manifest of a checkpoint in a folder.
        flag: how the path's writer calls it.
        verify: compare all of a checkpoint with its manifest. One of servers that was named itself is left to those who read it: no other
            could take its place, and it may be large.

    Raises BadSetting if there is none.
    """
    damaged: list[str] = []
    for folder in candidates(Path(path), flag):
        try:
            manifest = read(folder)
            if verify and (isinstance(manifest, GroupManifest) or folder != Path(path)):
                compare(manifest)
        except OtherKind as error:
            raise BadSetting(f"{flag}: {error}; name another checkpoint") from None
        except BadData as error:
            damaged.append(str(error))
            continue
        return folder, manifest, f"{'; '.join(damaged)}: {folder} is taken, the one before" if damaged else ""
    raise BadSetting(f"{flag}: {'; '.join(damaged)}; name another checkpoint")
