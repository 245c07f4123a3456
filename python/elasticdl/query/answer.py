"""What a statement gives: rows, the model that it made or used, and the summary of its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl.query import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from elasticdl.query.registry import Version


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a statement; of several, that to the last one.

    Attributes:
        statement: as it was written.
        table: its rows, a `pyarrow.Table`; None if it has none.
        model: that was made or used; None if none was.
        summary: of its job, as of `elasticdl.train`; empty if it had none.
        notes: what a person should know besides, such as what each column became.
        all: the answers to all statements of the script, in their order, this one included.
    """

    statement: str
    table: pa.Table | None = None
    model: Version | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    all: tuple[Answer, ...] = ()

    def to_pandas(self) -> Any:
        """Return the rows as a data frame, which needs pandas; one without columns if there are none."""
        import pyarrow as pa

        return (pa.table({}) if self.table is None else self.table).to_pandas()

    def __str__(self) -> str:
        return "" if self.table is None else shown.table(self.table)

    def _repr_html_(self) -> str:
        return "" if self.table is None else shown.html(self.table)
