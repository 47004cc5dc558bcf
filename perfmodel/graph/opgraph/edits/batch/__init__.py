"""The batch of an op graph as a what-if."""

from perfmodel.graph.opgraph.edits.batch.rebatch import rebatch

__all__ = ["rebatch"]
