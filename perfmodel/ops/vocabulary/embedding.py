"""Lookups in embedding tables, and work on the keyed jagged tensors that feed them.

Every lookup counts as read, also where its row is in a cache: which rows stay there is for the
kernel models to say, from `zipf_alpha` (0: uniform) or the number of distinct rows
(`unique_rows`; 0: not known). `longest_bag` (0: not known) is the number of lookups in it.

Offsets and lengths are int64 here; the row's dtype is that of the values.

Rows of embedding tables beside the device: host memory, its bus, drives and network adapters.

`lookups` rows of `row_bytes` each, repeats counted, of which `unique_rows` are distinct (0: as many
as the lookups); `WORKING_SETS` are the bytes of distinct rows among all of them, a quarter, a
sixteenth and so on, table by table (0: rows are alike); `bags` are what they are pooled to,
`state_bytes` the optimizer's state per row. The row's dtype is that of gradients and
pooled vectors; `dim` their width.

Its dims and directions are those of the operator on a CPU; `processes` of a node run it at the same
time, each on a share of the cores (0: one per GPU).

`probes` keys are looked for in its cache, `lookups` of them find their row of `row_bytes`; rows of
one bag are added up, to `bags` vectors of `dim`. `delivered_bytes` go to the device over its bus.
Every row takes a descriptor.

`rows` of `row_bytes` at random places; `in_flight` reads that the rank keeps going at a time (0: as
many as it has rows). A drive moves whole sectors: how many more bytes that is, the tier's model
says. `page_rows`: how many of a write's rows share a page (a log that is written in turn has many).
All ranks of the node ask together for as much as `sharers` like this one (0: each for as much).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.ops.spec import ROWS_COLS, VECTOR, Dims, op, streaming

EMBEDDING = "embedding"
_REUSE = {"zipf_alpha": 0, "unique_rows": 0, "longest_bag": 0}
BAG_DEFAULTS = {**_REUSE, "dense": 0}

# Backward a row per lookup is written, or (`dense` = 1) zeros for the table and the rows on top.
_LOOKUPS = "(batch*pooling)"
_TOUCHED = f"where(unique_rows > 0, unique_rows, minimum({_LOOKUPS}, hash_size))"
_INDICES = f"8*{_LOOKUPS}"

bag = partial(
    op,
    dims="hash_size dim pooling batch",
    means=("pooling",),
    flop=f"{_LOOKUPS}*dim",
    read=f"item*({_LOOKUPS}*dim) + {_INDICES}",
    written="item*batch*dim",
    directions="fwd bwd update",
    other_directions={
        "bwd": {
            "read": f"item*batch*dim + {_INDICES}",
            "written": f"where(dense > 0, (hash_size + {_TOUCHED})*(item*dim), "
            f"{_LOOKUPS}*(item*dim) + {_INDICES})",
        },
        "update": {
            "flop": f"2*({_LOOKUPS}*dim)",
            "read": f"item*dim*({_LOOKUPS} + {_TOUCHED}) + {_INDICES}",
            "written": f"item*dim*{_TOUCHED}",
        },
    },
    defaults=BAG_DEFAULTS,
)
bag("embedding_bag", family=EMBEDDING)


def stored_row_bytes(dims: Dims, item_bytes: Floats) -> Floats:
    """Bytes of a row of either op: as stated (`row_bytes`), else its elements alone."""
    elements = item_bytes * dims["dim"]
    if "row_bytes" not in dims:
        return elements
    return np.where(dims["row_bytes"] > 0, dims["row_bytes"], elements)


# `tables` tables of `hash_size` rows on average and mean width `dim`; `lookups` in all tables and
# the whole batch; pooled outputs of `output_bytes` per element. `bwd` starts from sorted indices
# and updates the rows in place, with the optimizer's state (`state_bytes` per row);
# `bwd_indice_weights` is the gradient of per-sample weights.
# `early`: kernels before FBGEMM's, which update lookup by lookup, without a sort. `row_bytes`: what
# a stored row takes with scale and padding (0: its elements alone); `index_bytes`: of an index and
# an offset (quantised rows are looked up by int32). `cache_lookup`: of the keys in a cache's sets.
_ROW_BYTES = "where(row_bytes > 0, row_bytes, item*dim)"
_READ = f"{_ROW_BYTES}*lookups"
_KEYS = "((index_bytes + 4*weighted)*lookups + index_bytes*tables*batch)"
_POOLED = "output_bytes*tables*batch*dim"
_ROWS = (
    "where(unique_rows > 0, unique_rows, minimum(lookups, tables*hash_size))"
    f"*({_ROW_BYTES} + state_bytes)"
)
table_batched = partial(
    op,
    dims="tables batch lookups dim hash_size",
    flop="lookups*dim*(1 + weighted)",
    read=f"{_READ} + {_KEYS}",
    written=_POOLED,
    directions="fwd bwd bwd_indice_weights",
    other_directions={
        "bwd": {
            "flop": "3*lookups*dim",
            "read": f"{_POOLED} + {_KEYS} + {_ROWS}",
            "written": _ROWS,
        },
        "bwd_indice_weights": {
            "flop": "2*lookups*dim",
            "read": f"{_READ} + {_POOLED} + {_KEYS}",
            "written": "4*lookups",
        },
    },
    defaults=_REUSE
    | {"early": 0, "weighted": 0, "output_bytes": 4, "state_bytes": 0}
    | {"row_bytes": 0, "index_bytes": 8},
)
table_batched("tbe cache_lookup", family=EMBEDDING)


_jagged = partial(op, family="jagged", dims="elements segments")
_OFFSETS = "8*segments"
_EACH, _BOTH = "1 + weighted", f"2*({_OFFSETS})"
# Segments in another order, their values with them (and, `weighted` = 1, a weight of the same size
# each); values to the rank that owns them, segment by segment.
_jagged(
    "jagged_permute", **streaming("elements", _EACH, _EACH, "0", _BOTH), defaults={"weighted": 0}
)
_jagged(
    "jagged_bucketize", **streaming("elements", _EACH, _EACH, "2", _BOTH), defaults={"weighted": 0}
)
# Every index against the size of its table (nothing is written where all are in range); every index
# with the rows of the tables before its own added, and which table and bag it is of.
for _name, _writes in (("bounds_check", "0"), ("linearize_index", "1.5")):
    _work = streaming("elements", writes=_writes, read_too=_OFFSETS)
    _jagged(_name, kernels=EMBEDDING, **_work)
# Jagged to a dense matrix of as many elements, or back; for each segment its offsets as a range.
_jagged("jagged_to_dense", **streaming("elements", flop="0", read_too=_OFFSETS))
_jagged("offsets_range", **streaming("elements", reads="0", read_too=_OFFSETS))
# Pooled embeddings `rows` (batch) x `cols` (all dims) with the tables in another order.
_MOVED = streaming(ROWS_COLS, flop="0")
op("permute_pooled", VECTOR, "rows cols", kernels=EMBEDDING, **_MOVED, defaults={"tables": 0})


HOST_MEMORY, ACCELERATOR, HOST_BUS = "host_memory", "accelerator", "host_bus"
KEY_BYTES = 8.0
PART = 4
"""Of so many lookups one is in the next working set."""
WORKING_SETS = tuple(f"distinct_bytes_{PART**at}" for at in range(8))
_DEFAULTS = {"unique_rows": 0.0, "state_bytes": 0.0} | dict.fromkeys(WORKING_SETS, 0.0)
_KEYED = f"lookups*(row_bytes + {KEY_BYTES})"
_DISTINCT = "where(unique_rows > 0, minimum(unique_rows, lookups), lookups)"
_UPDATED = f"{_DISTINCT}*(row_bytes + state_bytes)"
_rows = partial(op, dims="lookups row_bytes", defaults=_DEFAULTS)
_bags = partial(op, family=HOST_MEMORY, dims="lookups row_bytes bags dim", defaults=_DEFAULTS)

# Rows into a buffer that a copy takes to the device, and from a buffer back to their places.
_rows("host_gather host_scatter", family=HOST_MEMORY, read=_KEYED, written="lookups*row_bytes")
# Gathered and added up, one vector per bag.
_bags("host_pool", flop="lookups*dim", read=_KEYED, written="bags*dim*item")
# Gradients of bags added up per row, and the optimizer's step on these rows.
_bags(
    "host_apply",
    flop="3*lookups*dim",
    read=f"bags*dim*item + {KEY_BYTES}*lookups + {_UPDATED}",
    written=_UPDATED,
)
# Rows of host memory to the device, and changed ones back, by an accelerator or the host's cores;
# meanwhile `keys` are looked for among the hot rows, and samples of `waiting_bytes` wait.
_rows(
    "rows_to_device rows_to_host",
    family=ACCELERATOR,
    read=_KEYED,
    written="lookups*(row_bytes + state_bytes)",
    defaults={**_DEFAULTS, "keys": 0, "waiting_bytes": 0},
)

table_batched("tbe_host", family=HOST_BUS)

HOST_OPERATORS, OPERATOR, PROCESSES = "host_operators", "embedding_bag", "processes"
bag(f"host_{OPERATOR}", family=HOST_OPERATORS, defaults={**BAG_DEFAULTS, PROCESSES: 0})


NIC = "nic"
# A tag of 16 bytes: a key and where its row lies, beside its neighbours in a set. assumed
op(
    "nic_lookup",
    NIC,
    "probes",
    flop="lookups*dim",
    read="probes*16 + lookups*row_bytes",
    written="bags*dim*item",
    defaults={"lookups": 0, "row_bytes": 0, "bags": 0, "dim": 0, "delivered_bytes": 0.0},
)


STORAGE = "storage"
_SHARED = {"in_flight": 0, "sharers": 0}
_drive = partial(op, family=STORAGE, dims="rows row_bytes")
_drive("storage_read", read="rows*row_bytes", defaults=_SHARED)
_drive("storage_write", written="rows*row_bytes", defaults={**_SHARED, "page_rows": 1})
