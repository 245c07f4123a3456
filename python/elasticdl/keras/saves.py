"""What `model.save` does in a callback: one member writes, and nothing half written ever has the final name.

Callbacks run in every member, `ModelCheckpoint` too. The member that writes does so beside the place and renames; in the others the same
call only says what would have been written, so that the next writer can make up for a writer that was lost before its file was there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticdl.errors import Unwritable
from elasticdl.files.output import made_beside, remove_drafts
from elasticdl.keras.kerasfile import os_errors
from elasticdl.keras.library import library_of

Write = Callable[[], None]

_WRITING = ("save", "save_weights", "export")
"""The methods of a model that write what is at a path."""


class Saves:
    """The writing methods of a model, as callbacks find them there."""

    def __init__(self, model: Any, optimizer: Any, path: Path) -> None:
        """`optimizer`: whose state is saved with the model; `path`: of the model file, for messages."""
        self._model = model
        self._optimizer = optimizer
        self._path = path
        self._own = {name: getattr(model, name) for name in _WRITING}
        self._compiled_with = model.get_compile_config

    @contextmanager
    def shown(self, skip: Callable[[Write], None] | None) -> Iterator[None]:
        """Let callbacks find methods that write, or with `skip` some that only give it what would write."""
        # past Keras, which would look for layers in what is assigned
        attributes = vars(self._model)
        attributes.update({name: functools.partial(self._called, name, skip) for name in _WRITING})
        try:
            yield
        finally:
            for name in _WRITING:
                attributes.pop(name, None)

    def _called(
        self, name: str, skip: Callable[[Write], None] | None, filepath: Any, *more: Any, **named: Any
    ) -> None:
        write = functools.partial(self._write, name, os.fspath(filepath), *more, **named)
        if skip is None:
            write()
        else:
            skip(write)

    def _write(self, name: str, target: str, *more: Any, **named: Any) -> None:
        attributes = vars(self._model)
        attributes["get_compile_config"] = self._compile_config
        try:
            with os_errors():
                if _is_renamed(name, target, more, named):
                    remove_drafts(Path(target))
                    with made_beside(target, Path(target).name) as draft:
                        self._own[name](draft, *more, **named)
                else:
                    self._own[name](target, *more, **named)
        except OSError as error:
            what = f"{self._path}: what a callback saves can't be written to {target}"
            raise Unwritable(what, error, "start the job again") from error
        finally:
            del attributes["get_compile_config"]

    def _compile_config(self) -> dict[str, Any]:
        """Return what `load_model` compiles the model with: the optimizer, whose variables are saved anyway, is lost without it."""
        optimizers = library_of(self._model).package.optimizers
        return {**(self._compiled_with() or {}), "optimizer": optimizers.serialize(self._optimizer)}


def _is_renamed(name: str, target: str, more: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Tell whether one file or directory is made, which may replace another one, on a file system."""
    if "://" in target:
        return False
    if name == "export":
        return True
    replaces = more[0] if more else named.get("overwrite", True)
    return len(more) < 2 and replaces and named.get("max_shard_size") is None
