"""Giving a model the rows of its tables as matrices, of which none is ever in memory as a whole: they are files that are mapped."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elasticdl.catalog.tablereader import TableReader
from elasticdl.torch.tables import Tables


@contextmanager
def with_matrices(tables: Tables, reader: TableReader, path: str, digest: Any = None) -> Iterator[None]:
    """Let layers have their rows while the model is written to `path`, in whose folder the files are; they have no names.

    All tables have `num_embeddings`. `digest`: is updated with all rows. The model is of no use afterwards. Raises OSError.
    """
    room = Path(path).parent
    room.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        for number, layer in enumerate(tables.values()):
            assert layer.num_embeddings is not None, "tables of any range are written as Parquet only"
            file = files.enter_context(tempfile.TemporaryFile(dir=room))
            for block in reader.matrix(number, layer.num_embeddings):
                file.write(block.data)
                if digest is not None:
                    digest.update(block.data)
            file.flush()
            shape = (layer.num_embeddings, layer.embedding_dim)
            layer.take(torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape)))
        yield
