"""Data moved within a device, off it and between ranks, and its order.

Gathers and scatters move `rows` rows of `cols` elements from or to a table of `hash_size` rows (0:
not known), by int64 indices.

Collectives are among `ranks` ranks; `size_bytes` as nccl-tests define it. That is, for
`all_reduce`, `broadcast` and `reduce` each rank's buffer, for `all_gather` the whole output, for
`reduce_scatter` the whole input, for `all_to_all` one rank's whole send buffer, for `send_recv` the
message. `in_network` = 1 lets switches of the network add up (SHARP). Bytes read and written are
those that leave and enter one rank, at least.

What a host thread spends around kernels, and work that no shape shows.

`count` of them at a time; there is no work to count.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.ops.spec import ROWS_COLS, VECTOR, op, streaming

_rows = partial(op, family=VECTOR, dims="rows cols")

# `elements` of a copy are the values that it moves: those it reads and those it writes.
op(
    "copy",
    VECTOR,
    "elements",
    **streaming("elements/2", flop="0"),
    defaults={"strided": 0, "apart": 0},
)
_rows("transpose_copy", **streaming(ROWS_COLS, flop="0"))

# `tensors` of `rows x cols` each become, or come from, one of `rows x (cols * tensors)`; `largest`
# (0: as the mean) is the number of elements of the largest; `by_elements` = 1: by a kernel
# that moves single elements, as before PyTorch 2.9.
op(
    "cat split",
    VECTOR,
    "rows cols tensors",
    kernels="cat_split",
    **streaming("rows*cols*tensors", flop="0"),
    defaults={"strided": 0, "largest": 0, "by_elements": 0},
)

# Rows read from a table; `by_elements` (0: whole rows): how many elements a thread looks up, one
# after another.
_rows = partial(_rows, kernels="gather_scatter", defaults={"hash_size": 0})
_READ = {"hash_size": 0, "by_elements": 0}
_MOVED = streaming(ROWS_COLS, flop="0", read_too="8*rows")
_rows("index_select gather", **_MOVED, defaults=_READ)
_rows("embedding", **_MOVED, defaults=_READ, directions="fwd bwd")
_rows("index_put scatter", **_MOVED)
# Adds into a table: the rows to add, and the rows they are added to, read and written. Where that
# is by atomics, `most_repeated` is how often the row comes that comes most often (0: as the mean);
# `by_vectors` = 1: not element by element, as PyTorch's kernels add.
_ATOMICS = {"hash_size": 0, "most_repeated": 0, "by_vectors": 0}
_ADDED = streaming(ROWS_COLS, reads="2", read_too="8*rows")
_rows("index_add scatter_add", **_ADDED, defaults=_ATOMICS)
_rows("index_put_accumulate", **_ADDED)

TRANSFER = "transfer"
HOST_COPIES = ("copy_h2d", "copy_d2h")
# `pinned` = 0: host memory that may be paged out, which the driver copies through a buffer.
# `ranks`: how many devices of the job copy at once.
_copy = partial(op, family=TRANSFER, dims="elements", **streaming("elements", flop="0"))
_copy(" ".join(HOST_COPIES), defaults={"pinned": 0, "ranks": 1})
_copy("copy_p2p", kernels="memcpy_peer", defaults={"pinned": 0})


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


# Keys in and out, and their payload: read and written once. `key_bits`: how many bits of a key can
# differ (0: all); a radix sort passes once per 8 of them.
_COMPARISONS = "log2(maximum(cols, 2))"
for _name, _payload_bytes in (("sort", 8.0), ("sort_pairs", 4.0)):
    op(
        _name,
        SORT,
        "rows cols",
        flop=f"{ROWS_COLS}*{_COMPARISONS}",
        read=f"{ROWS_COLS}*item",
        written=f"{ROWS_COLS}*(item + payload_bytes)",
        defaults={"key_bits": 0, "payload_bytes": _payload_bytes},
    )
op("unique", SORT, "rows cols", **streaming(ROWS_COLS, flop=_COMPARISONS))
_READ_ALL = f"item*({ROWS_COLS})"
op("topk", SORT, "rows cols k", flop=ROWS_COLS, read=_READ_ALL, written="rows*k*(item + 8)")
# `run_length_encode`: runs of equal neighbours, their values, lengths and number.
op("cumsum run_length_encode", SORT, "rows cols", kernels="scan", **streaming(ROWS_COLS))
# Which of `boundaries` each value falls between.
op("bucketize", SORT, "rows cols boundaries", **streaming(ROWS_COLS, flop="log2(boundaries + 1)"))


COLLECTIVE = "collective"
# The share of `size_bytes` that concerns other ranks, and how often it is sent and received (or all
# of it once), with the additions per byte.
_OTHERS = "((ranks - 1)/ranks)"
_WORK = {
    "all_reduce": (f"2*{_OTHERS}", 0.25),
    "all_gather all_to_all": (_OTHERS, 0.0),
    "reduce_scatter": (_OTHERS, 0.25),
    "broadcast send_recv": ("1", 0.0),
    "reduce": ("1", 0.25),
    "barrier": ("0", 0.0),
}
for _name, (_share, _additions) in _WORK.items():
    op(
        _name,
        COLLECTIVE,
        "size_bytes",
        flop=f"{_additions}*{_OTHERS}*size_bytes",
        read=f"size_bytes*({_share})",
        written=f"size_bytes*({_share})",
        defaults={"ranks": 2, "nodes": 1, "in_network": 0},
    )


HOST = "host"
VIEW, CALL, NODE, UPDATE, BUCKET, STEP = HOST_OPS = (
    "host_view",
    "host_call",
    "host_node",
    "host_update",
    "host_bucket",
    "host_step",
)
"""An operator that makes a view or an empty tensor; a call from Python into an operator of the
forward pass; an autograd node; a parameter that an optimizer visits; a bucket of gradients that DDP
hands over; whatever else a step costs."""
OTHER_VIEWS = ("host_detach", "host_transpose", "host_select", "host_slice")
VIEWS = (VIEW, *OTHER_VIEWS)
"""Views by what they compute; `host_view` is any that has no name of its own."""
PAUSE, UNKNOWN, RECORDED = "pause", "unknown", "recorded"

op(" ".join((*HOST_OPS, *OTHER_VIEWS)), HOST, "", defaults={"count": 1})
op(PAUSE, PAUSE, "wait_us")
_STREAMED = streaming("elements", "reads", "writes")
op(UNKNOWN, VECTOR, "elements", kernels="other", **_STREAMED, defaults={"reads": 1, "writes": 1})
op(RECORDED, RECORDED, "recorded_us", means=("recorded_us",), defaults={"ratio": 1, "spread": 1})
