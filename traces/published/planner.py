"""TorchRec's planner: costs of one shard by its formulas beside what its own functions return."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.explore.planner.torchrec import Topology, shard_cost

TOTALS_MS = {
    ("table_wise", "fused", 8): 0.0844789163,
    ("column_wise", "fused", 8): 0.0652143974,
    ("row_wise", "fused", 8): 0.0176144603,
    ("data_parallel", "dense", 8): 7.30311246,
    ("table_wise", "fused_uvm", 8): 22.7712758,
    ("table_wise", "fused_uvm_caching", 8): 3.5572877,
    ("table_row_wise", "fused", 16): 0.0742914206,
}
"""Per sharding, kernel and ranks: a shard of 1,000,000 rows of 64, 20 lookups per sample, with the
planner's defaults; of columns one of two shards."""
EXACT_PCT = 1e-3


@case("V7")
def parity(lab: Lab) -> Iterator[Figure]:
    """Defaults of the planner, eight GPUs per node."""
    for (sharding, kernel, ranks), target in TOTALS_MS.items():
        width = 32 if sharding == "column_wise" else 64
        found = shard_cost([1e6], [width], [20], [sharding], [kernel], Topology(ranks, 8))
        yield Figure(
            f"V7-{sharding.replace('_', '-')}-{kernel.replace('_', '-')}-{ranks}",
            f"TorchRec's planner, {sharding}, {kernel}, {ranks} GPUs",
            "ms",
            target,
            float(found.total_ms[0]),
            EXACT_PCT,
            "exact: outputs of EmbeddingPerfEstimator of pytorch/torchrec a48cef79; all 168 cases "
            "of the reference data are a test",
        )
