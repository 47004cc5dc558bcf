"""Work on keyed jagged tensors: `elements` values in `segments` segments (features x batch).

Offsets and lengths are int64 here; the row's dtype is that of the values.
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats
from perfmodel.ops.streaming import elements, streaming

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
    streaming(elements, JAGGED, writes=0.0, read_index_bytes=_offsets, family=FAMILY)
)
# Every index with the rows of the tables before its own added, and which table and bag it is of.
OPS.register("linearize_index")(
    streaming(elements, JAGGED, writes=1.5, read_index_bytes=_offsets, family=FAMILY)
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
        defaults={"tables": 0.0},
    )
)
