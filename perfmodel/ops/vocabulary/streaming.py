"""Ops that work data through once, or move it: elementwise ops, losses, optimizers, pooling,
reductions, softmax and norms; copies, gathers, orders and collectives; and a host thread's own.

`strided` = 1 where operands are not laid out alike (transposed, sliced), else `broadcast` = 1 where
one is smaller, else `apart` = 1 where stretches of whole sectors of one lie apart: the kernel then
computes where each element lies, one by one. A number is neither. `widened` = 1 where values become
those of a wider type.

Optimizers, per element: the gradient and the parameter are read, the parameter written; each state
tensor is read and written.

Gathers and scatters move `rows` rows of `cols` elements from or to a table of `hash_size` rows (0:
not known), by int64 indices.

Collectives are among `ranks` ranks; `size_bytes` as nccl-tests define it. That is, for
`all_reduce`, `broadcast` and `reduce` each rank's buffer, for `all_gather` the whole output, for
`reduce_scatter` the whole input, for `all_to_all` one rank's whole send buffer, for `send_recv` the
message. `in_network` = 1 lets switches of the network add up (SHARP). Bytes read and written are
those that leave and enter one rank, at least.

Of what a host thread spends around kernels there are `count` at a time; there is no work to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.ops.spec import ROWS_COLS, VECTOR, op, streaming

_LAYOUT = {"strided": 0.0, "broadcast": 0.0, "apart": 0.0}
_rows = partial(op, family=VECTOR, dims="rows cols")

_rows(
    "add add_inplace mul div pow threshold_backward sigmoid_backward silu_and_mul",
    **streaming(ROWS_COLS, reads="2"),
    defaults=_LAYOUT,
)
_rows(
    "add_scalar mul_scalar div_scalar pow_scalar relu gelu silu sigmoid tanh",
    **streaming(ROWS_COLS),
    defaults=_LAYOUT,
)
_rows("fill", **streaming(ROWS_COLS, reads="0", flop="0"))
# Of 16 bits, to those of the row's dtype.
_rows("quantise", size=ROWS_COLS, flop="2*rows*cols", read="2*rows*cols", written="item*rows*cols")
_rows("rotary_embedding", **streaming(ROWS_COLS, reads="2", flop="3"))

# Any other arity: operands of full size, in elements of the row's dtype. One that is broadcast
# counts for the share that it is of a full one, one of another dtype for its share of bytes.
# `random`: calls of Philox per element, each of which gives four random numbers. `by_rows`: rows
# that a block of `threads` each takes, or `resident` blocks per multiprocessor in turn (0: one
# each).
_ANY = {"reads": 1.0, "writes": 1.0}
op(
    "elementwise",
    VECTOR,
    "elements",
    **streaming("elements", "reads", "writes", "flop_per_element"),
    defaults=_ANY
    | {"flop_per_element": 1, "random": 0, "widened": 0}
    | {"by_rows": 0, "threads": 128, "resident": 0}
    | _LAYOUT,
)
op("random", VECTOR, "elements", kernels="random", **streaming("elements", reads="0", flop="10"))

# Many small tensors in few launches: `elements` of each of `tensors`, `largest` of the largest.
_ALL = "elements*tensors"
op(
    "foreach",
    VECTOR,
    "elements tensors",
    kernels="optimizer",
    **streaming(_ALL, "reads", "writes"),
    defaults={**_ANY, "largest": 0},
)

# Two logarithms per element forward, a division backward.
_rows(
    "binary_cross_entropy",
    kernels="loss",
    **streaming(ROWS_COLS, reads="2", flop="40"),
    directions="fwd bwd",
    other_directions={"bwd": streaming(ROWS_COLS, reads="2", flop="4")},
)

# By optimizer: how many states it keeps of a parameter's own shape, and FLOP.
_OPTIMIZERS = {
    "sgd": (0, 2),
    "adagrad": (1, 6),
    "rowwise_adagrad": (0, 6),
    "adam": (2, 12),
    "adamw": (2, 14),
    "lamb": (2, 20),
}
for _name, (_states, _flop) in _OPTIMIZERS.items():
    op(
        f"optimizer_{_name}",
        "optimizer",
        "elements tensors",
        **streaming(_ALL, f"{2 + _states}", f"{1 + _states}", f"{_flop}"),
        directions="update",
        defaults={"largest": 0},
    )

# A maximum keeps where in its window it was, as int64. Windows have `sides`.
_WINDOW = "outputs*kernel_size**2"
for _name, _written in (("max_pool", "(item + 8)*outputs"), ("avg_pool", "item*outputs")):
    op(
        _name,
        "pooling",
        "elements outputs",
        size=_WINDOW,
        flop=_WINDOW,
        read="item*elements",
        written=_written,
        directions="fwd bwd",
        other_directions={"bwd": {"size": "", "read": _written, "written": "item*elements"}},
        defaults={"kernel_size": 1, "sides": 2, "channels_last": 0},
    )

for _name in ("sum", "mean", "amax", "vector_norm"):
    _rows(_name, kernels="reduction", **streaming(ROWS_COLS, writes="1/cols"))
_rows("sum_rows", kernels="reduction", **streaming(ROWS_COLS, writes="1/rows"))


def _normalisation(
    names: str,
    flop: tuple[str, str],
    weights: str = "0",
    *,
    family: str = VECTOR,
    kernels: str = "norm",
    defaults: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """`flop` per element forward and backward, which reads the gradient and what was saved;
    `weights` are read, and their gradients written, per element."""
    backward = streaming(ROWS_COLS, f"2 + {weights}", f"1 + {weights}", flop[1])
    op(
        names,
        family,
        "rows cols",
        kernels=kernels,
        **streaming(ROWS_COLS, reads=f"1 + {weights}", flop=flop[0]),
        directions="fwd bwd",
        other_directions={"bwd": backward},
        defaults=defaults,
    )


_normalisation("softmax log_softmax", ("4", "4"), kernels="softmax", defaults={"strided": 0})
_normalisation("layer_norm", ("8", "12"), "2*(1/rows)")
_normalisation("rms_norm", ("4", "8"), "1/rows")
# `channels` of a group, which backward each have a block.
_normalisation("group_norm", ("8", "12"), defaults={"channels": 1})
# Of `cols` channels with `rows` values each, whatever the layout in memory. `statistics` 0: those
# of training are used, as in inference.
_normalisation("batch_norm", ("8", "12"), family="channel", defaults={"statistics": 1})


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
# of it once), with the additions per byte; 0 ranks count as one alone.
_OTHERS = "(maximum(ranks - 1, 0)/maximum(ranks, 1))"
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
