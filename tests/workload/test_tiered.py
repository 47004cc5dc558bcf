"""A placement and a pipeline as ops: the step of TorchRec, tables beside device memory."""

import pytest

from perfmodel.embedding import MicroBatch, Pipeline
from perfmodel.lowering import lower
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.sharding import own_placement

RANKS = (1, 4)


def torchrec(**changes: object) -> Workload:
    workload = load_workload("criteo-kaggle")
    return workload.with_(implementation__name="torchrec", table__rows=10_000, **changes)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_host_pools_what_lies_in_its_memory(ranks: int) -> None:
    workload = torchrec()
    placement = own_placement(workload, ranks).edited(
        lambda number, _: {"tier": "host", "pooled_on": "host"} if number < 4 else {}
    )
    pieces = lower(op_graph(workload, ranks=ranks, placement=placement), "cuda").pieces
    pooled, applied = (piece for piece in pieces if piece.kind == "offload")
    assert (pooled.op, applied.op) == ("host_pool", "host_apply")
    own = 4 // ranks
    assert pooled.dims["bags"] == applied.dims["bags"] == own * workload.batch
    assert pooled.dims["row_bytes"] == 4 * workload.dim


def test_process_groups_of_their_own_have_a_stream_each() -> None:
    workload = torchrec(implementation__prefetch=True)
    placement = own_placement(workload, 4)

    def streams(pipeline: Pipeline) -> dict[str, set[str]]:
        ops = op_graph(workload, ranks=4, placement=placement, pipeline=pipeline).ops
        found: dict[str, set[str]] = {}
        for op in ops:
            if "process_group" in op.attributes:
                kind = op.attributes.get("pipeline", op.attributes["collective"])
                found.setdefault(kind, set()).add(op.attributes.get("stream", "comm"))
        return found

    together = Pipeline(input_ahead=True)
    assert set().union(*streams(together).values()) == {"comm"}


def test_micro_batches_share_the_samples_out() -> None:
    workload = torchrec()
    placement = own_placement(workload, 1)
    half = Pipeline((MicroBatch(0.5), MicroBatch(0.5)))
    whole = lower(op_graph(workload, placement=placement), "cuda").pieces
    parted = lower(op_graph(workload, placement=placement, pipeline=half), "cuda").pieces

    def samples(pieces: object) -> float:
        return sum(p.dims["batch"] for p in pieces if p.op == "tbe" and p.direction == "fwd")  # type: ignore[attr-defined]

    assert samples(whole) == samples(parted) == workload.batch
