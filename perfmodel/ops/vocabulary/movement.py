"""Data moved within a device and off it, and its order.

Gathers and scatters move `rows` rows of `cols` elements from or to a table of `hash_size` rows,
by int64 indices.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.ops.spec import OPS, Dims, OpSpec, elements, rows_cols, streaming

ROWS_COLS = ("rows", "cols")
INDEX_BYTES = 8.0
STRIDED = {"strided": 0.0}
"""1 where an operand does not lie in one stretch."""
TABLE = {"hash_size": 0.0}
"""0 where the size of the table is not known."""


def _indices(dims: Dims) -> Floats:
    return INDEX_BYTES * dims["rows"]


def _all_tensors(dims: Dims) -> Floats:
    return rows_cols(dims) * dims["tensors"]


def _copied(dims: Dims) -> Floats:
    """`elements` of a copy are the values that it moves: those it reads and those it writes."""
    return elements(dims) / 2.0


OPS.register("copy")(
    streaming(_copied, ("elements",), flop=0.0, defaults={**STRIDED, "apart": 0.0})
)
OPS.register("transpose_copy")(streaming(rows_cols, ROWS_COLS, flop=0.0))

# `tensors` of `rows x cols` each become, or come from, one of `rows x (cols * tensors)`; `largest`
# (0: as the mean) is the number of elements of the largest; `by_elements` = 1: by a kernel
# that moves single elements, as before PyTorch 2.9.
for _name in ("cat", "split"):
    OPS.register(_name)(
        streaming(
            _all_tensors,
            (*ROWS_COLS, "tensors"),
            flop=0.0,
            kernels="cat_split",
            defaults={**STRIDED, "largest": 0.0, "by_elements": 0.0},
        )
    )

# Rows read from a table; `by_elements` (0: whole rows): how many elements a thread looks up, one
# after another.
_READ = {**TABLE, "by_elements": 0.0}
for _name in ("index_select", "gather", "embedding"):
    OPS.register(_name)(
        streaming(
            rows_cols,
            ROWS_COLS,
            flop=0.0,
            read_index_bytes=_indices,
            kernels="gather_scatter",
            defaults=_READ,
            directions=("fwd", "bwd") if _name == "embedding" else ("fwd",),
        )
    )
# Adds into a table: the rows to add, and the rows they are added to, read and written. Where that
# is by atomics, `most_repeated` is how often the row comes that comes most often (0: as the mean);
# `by_vectors` = 1: not element by element, as PyTorch's kernels add.
_ATOMICS = {"most_repeated": 0.0, "by_vectors": 0.0}
_ADDED = {"index_add": _ATOMICS, "scatter_add": _ATOMICS}
for _name in (*_ADDED, "index_put_accumulate"):
    OPS.register(_name)(
        streaming(
            rows_cols,
            ROWS_COLS,
            reads=2.0,
            read_index_bytes=_indices,
            kernels="gather_scatter",
            defaults={**TABLE, **_ADDED.get(_name, {})},
        )
    )
for _name in ("index_put", "scatter"):
    OPS.register(_name)(
        streaming(
            rows_cols,
            ROWS_COLS,
            flop=0.0,
            read_index_bytes=_indices,
            kernels="gather_scatter",
            defaults=TABLE,
        )
    )


TRANSFER = "transfer"

HOST_COPIES = ("copy_h2d", "copy_d2h")
# `pinned` = 0: host memory that may be paged out, which the driver copies through a buffer.
# `ranks`: how many devices of the job copy at once.
for _copy in (*HOST_COPIES, "copy_p2p"):
    _defaults = {"pinned": 0.0, **({"ranks": 1.0} if _copy in HOST_COPIES else {})}
    OPS.register(_copy)(
        streaming(
            elements,
            ("elements",),
            flop=0.0,
            family=TRANSFER,
            kernels="" if _copy in HOST_COPIES else "memcpy_peer",
            defaults=_defaults,
        )
    )


SORT = "sort"
BLOCK_KEYS = 4096
"""Keys alone that one block of threads sorts without going back to memory. Assumed: PyTorch's sort,
recalled."""


def keys_of_block(item_bytes: Floats | float) -> Floats:
    """The same of keys with values: 256 threads with 76 bytes each of the wider of the two.

    Source: CUB's radix sort, 19 keys of four bytes a thread; blocks in traces on V100 and H200 end
    at 2,304 keys of 64 bits.
    """
    return np.asarray(256.0 * np.floor(76.0 / item_bytes))


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
OPS.register("unique")(streaming(rows_cols, ROWS_COLS, flop=_comparisons, family=SORT))
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
# `run_length_encode`: runs of equal neighbours, their values, lengths and number.
OPS.register("cumsum", "run_length_encode")(
    streaming(rows_cols, ROWS_COLS, family=SORT, kernels="scan")
)
# Which of `boundaries` each value falls between.
OPS.register("bucketize")(
    streaming(
        rows_cols,
        (*ROWS_COLS, "boundaries"),
        flop=lambda dims: np.log2(dims["boundaries"] + 1.0),
        family=SORT,
    )
)
