"""What HugeCTR's step asks of its embeddings."""

from __future__ import annotations

from typing import Protocol

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder


class Embeddings(Protocol):
    """One rank's embeddings in a step, in the order in which these are called."""

    reduce_group: str
    """The process group of the all-reduce: one of its own where it runs beside the exchange."""

    def look_up(self, r: Recorder) -> None:
        """Read the rank's rows and start on their exchange."""

    def local(self, r: Recorder) -> None:
        """What needs no other rank: replicated rows of the own samples."""

    def arrive(self, r: Recorder) -> Tensor:
        """Pooled rows of all tables for the own samples, `[batch, tables, dim]`."""

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        """From the gradient of what `arrive` gave: start to return it to the rows' ranks."""

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        """Sums of the own samples' gradients of replicated rows, which all ranks add up."""

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        """Update the rows; `reduced` is what all ranks added up of replicated ones."""


def stream(r: Recorder, name: str, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
    """One kernel of HugeCTR that moves its operands once."""
    r.leaf(f"hugectr::{name}", inputs, *outputs)
