"""What a member's accumulator contains: chunks that are added up for the step under way. Their gradients are in the framework's memory."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.worker.events import Contribution, Trailer


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Chunks.

    Attributes:
        chunks: these.
        examples: sum of their examples.
        loss: sum of the losses that are known.
        loss_examples: examples that have these.
    """

    chunks: tuple[Contribution, ...] = ()
    examples: float = 0.0
    loss: float = 0.0
    loss_examples: float = 0.0

    @property
    def lanes(self) -> frozenset[int]:
        """Return the lanes whose chunks are in it."""
        return frozenset(chunk.lane for chunk in self.chunks)

    def with_chunk(self, chunk: Contribution, examples: float, loss: float | None) -> Accumulator:
        """Return what it contains with one chunk more; `loss` is None if nobody has said it."""
        known, told = (0.0, 0.0) if loss is None else (loss, examples)
        return Accumulator(
            (*self.chunks, chunk), self.examples + examples, self.loss + known, self.loss_examples + told
        )

    def trailer(self, lanes: int, *, flag: bool) -> Trailer:
        """Return the figures that the ring adds up beside its gradients; `lanes`: of the step."""
        counts = [0] * lanes
        for chunk in self.chunks:
            counts[chunk.lane] += 1
        records = sum(chunk.records for chunk in self.chunks)
        return Trailer(records, self.examples, self.loss, self.loss_examples, int(flag), tuple(counts))


NOTHING = Accumulator()
