"""Orders and prefix sums: along `cols` of `rows x cols` keys of the row's dtype."""

from __future__ import annotations

import numpy as np

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec
from perfmodel.ops.streaming import rows_cols, streaming

SORT = "sort"
ROWS_COLS = ("rows", "cols")
INDEX_BYTES = 8.0


def _comparisons(dims: Dims) -> Floats:
    return np.log2(np.maximum(dims["cols"], 2.0))


def _sort(default_payload_bytes: float) -> OpSpec:
    """Keys in and out, and their payload: read and written once.

    `key_bits`: how many bits of a key can differ (0: all); a radix sort passes once per 8 of them.
    """
    return OpSpec(
        family=SORT,
        dims=ROWS_COLS,
        defaults={"key_bits": 0.0, "payload_bytes": default_payload_bytes},
        flop=lambda dims: rows_cols(dims) * _comparisons(dims),
        read_bytes=lambda dims, item_bytes: rows_cols(dims) * item_bytes,
        written_bytes=lambda dims, item_bytes: (
            rows_cols(dims) * (item_bytes + dims["payload_bytes"])
        ),
    )


OPS.register("sort")(_sort(INDEX_BYTES))
OPS.register("sort_pairs")(_sort(4.0))
OPS.register("unique")(
    streaming(rows_cols, ROWS_COLS, flop=_comparisons, family=SORT),
)
OPS.register("topk")(
    OpSpec(
        family=SORT,
        dims=(*ROWS_COLS, "k"),
        flop=rows_cols,
        read_bytes=lambda dims, item_bytes: item_bytes * rows_cols(dims),
        written_bytes=lambda dims, item_bytes: (
            dims["rows"] * dims["k"] * (item_bytes + INDEX_BYTES)
        ),
    )
)
OPS.register("cumsum")(streaming(rows_cols, ROWS_COLS, family=SORT))
# Runs of equal neighbours: their values, lengths and number.
OPS.register("run_length_encode")(streaming(rows_cols, ROWS_COLS, family=SORT))
# Which of `boundaries` each value falls between.
OPS.register("bucketize")(
    streaming(
        rows_cols,
        (*ROWS_COLS, "boundaries"),
        flop=lambda dims: np.log2(dims["boundaries"] + 1.0),
        family=SORT,
    )
)
