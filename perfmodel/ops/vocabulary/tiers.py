"""Rows of embedding tables beside the device: host memory, its bus, drives and network adapters.

`lookups` rows of `row_bytes` each, repeats counted, of which `unique_rows` are distinct (0: as many
as the lookups); `WORKING_SETS` are the bytes of distinct rows among all of them, a quarter, a
sixteenth and so on, table by table (0: rows are alike); `bags` are what they are pooled to,
`state_bytes` the optimizer's state per row. The row's dtype is that of gradients and
pooled vectors; `dim` their width.

Its dims and directions are those of the operator on a CPU; `processes` of a node run it at the same
time, each on a share of the cores (0: one per GPU).

`probes` keys are looked for in its cache, `lookups` of them find their row of `row_bytes`; rows of
one bag are added up, to `bags` vectors of `dim`. `messages` go out or come in meanwhile, and
`delivered_bytes` go to the device over its bus. Every row takes a descriptor.

`rows` of `row_bytes` at random places; `in_flight` reads that the rank keeps going at a time (0: as
many as it has rows). A drive moves whole sectors: how many more bytes that is, the tier's model
says. `page_rows`: how many of a write's rows share a page (a log that is written in turn has many).
`expansion`: 1 where the rows are in the node's expansion memory, not on its drives. All ranks of
the node ask together for as much as `sharers` like this one (0: each for as much).
"""

from __future__ import annotations

from functools import partial

from perfmodel.ops.spec import op
from perfmodel.ops.vocabulary.embedding import BAG_DEFAULTS, bag, table_batched

HOST_MEMORY, ACCELERATOR, HOST_BUS = "host_memory", "accelerator", "host_bus"
KEY_BYTES = 8.0
PART = 4
"""Of so many lookups one is in the next working set."""
WORKING_SETS = tuple(f"distinct_bytes_{PART**at}" for at in range(8))
_DEFAULTS = {"unique_rows": 0.0, "state_bytes": 0.0} | dict.fromkeys(WORKING_SETS, 0.0)
_READ = f"lookups*(row_bytes + {KEY_BYTES})"
_DISTINCT = "where(unique_rows > 0, minimum(unique_rows, lookups), lookups)"
_TOUCHED = f"{_DISTINCT}*(row_bytes + state_bytes)"
_rows = partial(op, dims="lookups row_bytes", defaults=_DEFAULTS)
_bags = partial(op, family=HOST_MEMORY, dims="lookups row_bytes bags dim", defaults=_DEFAULTS)

# Rows into a buffer that a copy takes to the device, and from a buffer back to their places.
_rows("host_gather host_scatter", family=HOST_MEMORY, read=_READ, written="lookups*row_bytes")
# Gathered and added up, one vector per bag.
_bags("host_pool", flop="lookups*dim", read=_READ, written="bags*dim*item")
# Gradients of bags added up per row, and the optimizer's step on these rows.
_bags(
    "host_apply",
    flop="3*lookups*dim",
    read=f"bags*dim*item + {KEY_BYTES}*lookups + {_TOUCHED}",
    written=_TOUCHED,
)
# Rows of host memory to the device, and changed ones back, by an accelerator or the host's cores;
# meanwhile `keys` are looked for among the hot rows, and samples of `waiting_bytes` wait.
_rows(
    "rows_to_device rows_to_host",
    family=ACCELERATOR,
    read=_READ,
    written="lookups*(row_bytes + state_bytes)",
    defaults={**_DEFAULTS, "keys": 0, "waiting_bytes": 0},
)

table_batched("tbe_host", family=HOST_BUS)

HOST_OPERATORS, OPERATOR, PROCESSES = "host_operators", "embedding_bag", "processes"
bag(f"host_{OPERATOR}", family=HOST_OPERATORS, defaults={**BAG_DEFAULTS, PROCESSES: 0})


NIC = "nic"
_MESSAGES = {"messages": 0.0, "delivered_bytes": 0.0}
# A tag of 16 bytes: a key and where its row lies, beside its neighbours in a set. assumed
op(
    "nic_lookup",
    NIC,
    "probes",
    flop="lookups*dim",
    read="probes*16 + lookups*row_bytes",
    written="bags*dim*item",
    defaults={"lookups": 0, "row_bytes": 0, "bags": 0, "dim": 0, **_MESSAGES},
)
# Rows into the cache: fetched ones after a miss, or changed ones as they are written through.
op(
    "nic_write",
    NIC,
    "lookups row_bytes",
    read="lookups*16",
    written="lookups*(row_bytes + 16)",
    defaults=_MESSAGES,
)

# A pair's two queries, and what they have in common: 16 bytes.
QUERY_ORDER = "query_order"
op(QUERY_ORDER, QUERY_ORDER, "pairs", flop="pairs", read="16*pairs", written="16*pairs")


STORAGE = "storage"
_SHARED = {"in_flight": 0, "expansion": 0, "sharers": 0}
_drive = partial(op, family=STORAGE, dims="rows row_bytes")
_drive("storage_read", read="rows*row_bytes", defaults=_SHARED)
_drive("storage_write", written="rows*row_bytes", defaults={**_SHARED, "page_rows": 1})
