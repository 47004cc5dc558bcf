"""Lookups in embedding tables, and work on the keyed jagged tensors that feed them.

Every lookup counts as read, also where its row is in a cache: which rows stay there is for the
kernel models to say, from `zipf_alpha` (0: uniform) or the number of distinct rows
(`unique_rows`; 0: not known). `longest_bag` (0: not known) is the number of lookups in it.

Offsets and lengths are int64 here; the row's dtype is that of the values.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.ops.spec import OPS, Dims, OpSpec, elements, streaming

EMBEDDING = "embedding"
INDEX_BYTES = 8.0
WEIGHT_BYTES = 4.0
BAG = ("hash_size", "dim", "pooling", "batch")
BAG_MEANS = ("pooling",)
BAG_DEFAULTS = {"zipf_alpha": 0.0, "unique_rows": 0.0, "longest_bag": 0.0, "dense": 0.0}
TBE = ("tables", "batch", "lookups", "dim", "hash_size")
TBE_DEFAULTS = {
    "zipf_alpha": 0.0,
    "unique_rows": 0.0,
    "longest_bag": 0.0,
    "early": 0.0,
    "weighted": 0.0,
    "output_bytes": 4.0,
    "state_bytes": 0.0,
    "row_bytes": 0.0,
    "index_bytes": INDEX_BYTES,
}


def _bag_lookups(dims: Dims) -> Floats:
    return dims["batch"] * dims["pooling"]


def _bag_flop(dims: Dims) -> Floats:
    return _bag_lookups(dims) * dims["dim"]


def _touched(dims: Dims, lookups: Floats, rows: Floats) -> Floats:
    """Distinct rows: as stated, else as many as can be."""
    return np.where(dims["unique_rows"] > 0, dims["unique_rows"], np.minimum(lookups, rows))


def _bag_touched(dims: Dims) -> Floats:
    return _touched(dims, _bag_lookups(dims), dims["hash_size"])


def _bag_indices(dims: Dims) -> Floats:
    return INDEX_BYTES * _bag_lookups(dims)


def _bag_gradient_bytes(dims: Dims, item_bytes: Floats) -> Floats:
    """Written backward: a row per lookup, or (`dense`) zeros for the table and the rows on top."""
    row_bytes = item_bytes * dims["dim"]
    sparse = _bag_lookups(dims) * row_bytes + _bag_indices(dims)
    dense = (dims["hash_size"] + _bag_touched(dims)) * row_bytes
    return np.where(dims["dense"] > 0, dense, sparse)


OPS.register("embedding_bag")(
    OpSpec(
        family=EMBEDDING,
        dims=BAG,
        means=BAG_MEANS,
        defaults=BAG_DEFAULTS,
        flop=_bag_flop,
        read_bytes=lambda d, item: item * _bag_flop(d) + _bag_indices(d),
        written_bytes=lambda d, item: item * d["batch"] * d["dim"],
        directions=("fwd", "bwd", "update"),
        other_directions={
            "bwd": OpSpec(
                family=EMBEDDING,
                dims=BAG,
                defaults=BAG_DEFAULTS,
                flop=_bag_flop,
                read_bytes=lambda d, item: item * d["batch"] * d["dim"] + _bag_indices(d),
                written_bytes=_bag_gradient_bytes,
            ),
            "update": OpSpec(
                family=EMBEDDING,
                dims=BAG,
                defaults=BAG_DEFAULTS,
                flop=lambda d: 2.0 * _bag_flop(d),
                read_bytes=lambda d, item: (
                    item * d["dim"] * (_bag_lookups(d) + _bag_touched(d)) + _bag_indices(d)
                ),
                written_bytes=lambda d, item: item * d["dim"] * _bag_touched(d),
            ),
        },
    )
)


def _tbe_indices(dims: Dims) -> Floats:
    weights = WEIGHT_BYTES * dims["weighted"]
    offsets = dims["index_bytes"] * dims["tables"] * dims["batch"]
    return (dims["index_bytes"] + weights) * dims["lookups"] + offsets


def _tbe_pooled(dims: Dims) -> Floats:
    return dims["output_bytes"] * dims["tables"] * dims["batch"] * dims["dim"]


def _tbe_rows(dims: Dims, item_bytes: Floats) -> Floats:
    """The distinct rows with the optimizer's state (`state_bytes` per row)."""
    touched = _touched(dims, dims["lookups"], dims["tables"] * dims["hash_size"])
    return touched * (stored_row_bytes(dims, item_bytes) + dims["state_bytes"])


def _tbe_looked_up(dims: Dims, item_bytes: Floats) -> Floats:
    return stored_row_bytes(dims, item_bytes) * dims["lookups"]


def stored_row_bytes(dims: Dims, item_bytes: Floats) -> Floats:
    """Bytes of a row of either op: as stated (`row_bytes`), else its elements alone."""
    elements = item_bytes * dims["dim"]
    if "row_bytes" not in dims:
        return elements
    return np.where(dims["row_bytes"] > 0, dims["row_bytes"], elements)


# `tables` tables of `hash_size` rows on average and mean width `dim`; `lookups` in all tables and
# the whole batch; pooled outputs of `output_bytes` per element. `bwd` starts from sorted indices
# and updates the rows in place; `bwd_indice_weights` is the gradient of per-sample weights.
# `early`: kernels before FBGEMM's, which update lookup by lookup, without a sort. `row_bytes`: what
# a stored row takes with scale and padding (0: its elements alone); `index_bytes`: of an index and
# an offset (quantised rows are looked up by int32). `cache_lookup`: of the keys in a cache's sets.
TBE_SPEC = OpSpec(
    family=EMBEDDING,
    dims=TBE,
    defaults=TBE_DEFAULTS,
    flop=lambda d: d["lookups"] * d["dim"] * (1.0 + d["weighted"]),
    read_bytes=lambda d, item: _tbe_looked_up(d, item) + _tbe_indices(d),
    written_bytes=lambda d, item: _tbe_pooled(d) + 0.0 * item,
    directions=("fwd", "bwd", "bwd_indice_weights"),
    other_directions={
        "bwd": OpSpec(
            family=EMBEDDING,
            dims=TBE,
            defaults=TBE_DEFAULTS,
            flop=lambda d: 3.0 * d["lookups"] * d["dim"],
            read_bytes=lambda d, item: _tbe_pooled(d) + _tbe_indices(d) + _tbe_rows(d, item),
            written_bytes=_tbe_rows,
        ),
        "bwd_indice_weights": OpSpec(
            family=EMBEDDING,
            dims=TBE,
            defaults=TBE_DEFAULTS,
            flop=lambda d: 2.0 * d["lookups"] * d["dim"],
            read_bytes=lambda d, item: _tbe_looked_up(d, item) + _tbe_pooled(d) + _tbe_indices(d),
            written_bytes=lambda d, item: WEIGHT_BYTES * d["lookups"] + 0.0 * item,
        ),
    },
)
OPS.register("tbe", "cache_lookup")(TBE_SPEC)


FAMILY = "jagged"
JAGGED = ("elements", "segments")
OFFSET_BYTES = 8.0


def _offsets(dims: Dims) -> Floats:
    return OFFSET_BYTES * dims["segments"]


def _input_and_output_offsets(dims: Dims) -> Floats:
    return 2.0 * _offsets(dims)


def _with_weights(dims: Dims) -> Floats:
    """Values, and with `weighted` = 1 a weight of the same size beside each."""
    return 1.0 + dims["weighted"]


# Segments in another order, their values with them.
OPS.register("jagged_permute")(
    streaming(
        elements,
        JAGGED,
        reads=_with_weights,
        writes=_with_weights,
        flop=0.0,
        read_index_bytes=_input_and_output_offsets,
        family=FAMILY,
        defaults={"weighted": 0.0},
    )
)
# Values to the rank that owns them, segment by segment.
OPS.register("jagged_bucketize")(
    streaming(
        elements,
        JAGGED,
        reads=_with_weights,
        writes=_with_weights,
        flop=2.0,
        read_index_bytes=_input_and_output_offsets,
        family=FAMILY,
        defaults={"weighted": 0.0},
    )
)
# Every index against the size of its table; nothing is written where all are in range.
OPS.register("bounds_check")(
    streaming(
        elements, JAGGED, writes=0.0, read_index_bytes=_offsets, family=FAMILY, kernels=EMBEDDING
    )
)
# Every index with the rows of the tables before its own added, and which table and bag it is of.
OPS.register("linearize_index")(
    streaming(
        elements, JAGGED, writes=1.5, read_index_bytes=_offsets, family=FAMILY, kernels=EMBEDDING
    )
)
# Jagged to a dense matrix of as many elements, or back.
OPS.register("jagged_to_dense")(
    streaming(elements, JAGGED, flop=0.0, read_index_bytes=_offsets, family=FAMILY)
)
# For each segment its offsets as a range of values.
OPS.register("offsets_range")(
    streaming(elements, JAGGED, reads=0.0, read_index_bytes=_offsets, family=FAMILY)
)
# Pooled embeddings `rows` (batch) x `cols` (all dims) with the tables in another order.
OPS.register("permute_pooled")(
    streaming(
        lambda dims: dims["rows"] * dims["cols"],
        ("rows", "cols"),
        flop=0.0,
        kernels=EMBEDDING,
        defaults={"tables": 0.0},
    )
)
