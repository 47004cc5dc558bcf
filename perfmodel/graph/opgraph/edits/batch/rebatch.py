"""`rebatch`: the same program at another batch."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import WorkloadError
from perfmodel.graph.opgraph.edits.batch.anonymous import Anonymous
from perfmodel.graph.opgraph.edits.batch.apply import Rescaled
from perfmodel.graph.opgraph.edits.batch.conflicts import conflicts
from perfmodel.graph.opgraph.edits.batch.follow import Follower
from perfmodel.graph.opgraph.edits.batch.leaves import batch_of
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import OpGraph

_SHOWN = 5


def rebatch(graph: OpGraph, batch: int, old: int | None = None) -> Edited:
    """`graph` at `batch` samples per rank; `old` is what it was recorded at, found if not given.

    The batch enters where a step's inputs do and is followed through every op: products of it
    (B*T, B*L, flattened) scale with it, parameters and their gradients do not. `undone` says which
    ops have sizes that could be the batch's or not, and how many lengths were scaled in proportion.
    Raises `WorkloadError` for a batch below 1, where fixed parts of the batch do not come out
    whole, and for a matrix product whose operands no longer fit.
    """
    if type(batch) is not int or batch < 1:
        raise WorkloadError(f"batch {batch!r}: expected an integer of at least 1")
    old = batch_of(graph) if old is None else old
    sizes = Follower(graph, old)
    scaled = Rescaled(graph, sizes, old, batch)
    ops = tuple(map(scaled.op, range(len(graph))))
    unfit = list(conflicts(graph.ops, ops))
    if unfit and len(graph.data):
        raise WorkloadError(f"{graph.source}: batch {old} to {batch}: {unfit[0]}")
    undone = [*unfit[:_SHOWN], *Anonymous(graph, old).undone()]
    if sizes.guessed:
        guessed = sorted(set(sizes.guessed))
        names = ", ".join(dict.fromkeys(graph.ops[i].name for i in guessed[:_SHOWN]))
        undone.append(
            f"{len(guessed)} ops have sizes that may be the batch or not ({names}, …): guessed"
        )
    if scaled.in_proportion:
        undone.append(f"{scaled.in_proportion} sizes that the data decides: scaled in proportion")
    stated = sum("lookups" in op.attributes for op in ops)
    if stated:
        undone.append(
            f"{stated} ops state their lookups per table: kept; change the workload instead"
        )
    note = f"batch {old} rescaled to {batch}"
    return Edited(replace(graph, ops=ops, notes=(*graph.notes, note)), tuple(undone))
