"""The batch of an op graph as a what-if."""

from __future__ import annotations

from perfmodel.ops.edits.batch.leaves import batch_of
from perfmodel.ops.edits.batch.rebatch import rebatch

__all__ = ["batch_of", "rebatch"]
