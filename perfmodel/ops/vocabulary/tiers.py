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
`delivered_bytes` go to the device over its bus, `fetched_bytes` the adapter reads there. Every row
takes a descriptor.

`rows` of `row_bytes` at random places; `in_flight` reads that the rank keeps going at a time (0: as
many as it has rows). A drive moves whole sectors: how many more bytes that is, the tier's model
says. `page_rows`: how many of a write's rows share a page (a log that is written in turn has many).
`expansion`: 1 where the rows are in the node's expansion memory, not on its drives. All ranks of
the node ask together for as much as `sharers` like this one (0: each for as much).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.ops.spec import OPS, Dims, OpSpec
from perfmodel.ops.vocabulary.embedding import TBE_SPEC

HOST_MEMORY = "host_memory"
KEY_BYTES = 8.0
PART = 4
"""Of so many lookups one is in the next working set."""
WORKING_SETS = tuple(f"distinct_bytes_{PART**at}" for at in range(8))
_DEFAULTS = {"unique_rows": 0.0, "state_bytes": 0.0} | dict.fromkeys(WORKING_SETS, 0.0)


def _distinct(dims: Dims) -> Floats:
    unique = dims["unique_rows"]
    return np.where(unique > 0, np.minimum(unique, dims["lookups"]), dims["lookups"])


def _looked_up(dims: Dims) -> Floats:
    return dims["lookups"] * (dims["row_bytes"] + KEY_BYTES)


def _rows(dims: Dims) -> Floats:
    return dims["lookups"] * dims["row_bytes"]


def _touched(dims: Dims) -> Floats:
    return _distinct(dims) * (dims["row_bytes"] + dims["state_bytes"])


def _pooled(dims: Dims, item_bytes: Floats) -> Floats:
    return dims["bags"] * dims["dim"] * item_bytes


# Rows into a buffer that a copy takes to the device, and from a buffer back to their places.
OPS.register("host_gather", "host_scatter")(
    OpSpec(
        family=HOST_MEMORY,
        dims=("lookups", "row_bytes"),
        defaults=_DEFAULTS,
        flop=lambda d: 0.0 * d["lookups"],
        read_bytes=lambda d, item: _looked_up(d) + 0.0 * item,
        written_bytes=lambda d, item: _rows(d) + 0.0 * item,
    )
)

# Gathered and added up, one vector per bag.
OPS.register("host_pool")(
    OpSpec(
        family=HOST_MEMORY,
        dims=("lookups", "row_bytes", "bags", "dim"),
        defaults=_DEFAULTS,
        flop=lambda d: d["lookups"] * d["dim"],
        read_bytes=lambda d, item: _looked_up(d) + 0.0 * item,
        written_bytes=_pooled,
    )
)

# Gradients of bags added up per row, and the optimizer's step on these rows.
OPS.register("host_apply")(
    OpSpec(
        family=HOST_MEMORY,
        dims=("lookups", "row_bytes", "bags", "dim"),
        defaults=_DEFAULTS,
        flop=lambda d: 3.0 * d["lookups"] * d["dim"],
        read_bytes=lambda d, item: _pooled(d, item) + KEY_BYTES * d["lookups"] + _touched(d),
        written_bytes=lambda d, item: _touched(d) + 0.0 * item,
    )
)

ACCELERATOR = "accelerator"
_BESIDE = {"keys": 0.0, "waiting_bytes": 0.0}

# Rows of host memory to the device, and changed ones back, by an accelerator or the host's cores;
# meanwhile `keys` are looked for among the hot rows, and samples of `waiting_bytes` wait.
OPS.register("rows_to_device", "rows_to_host")(
    OpSpec(
        family=ACCELERATOR,
        dims=("lookups", "row_bytes"),
        defaults=_DEFAULTS | _BESIDE,
        flop=lambda d: 0.0 * d["lookups"],
        read_bytes=lambda d, item: _looked_up(d) + 0.0 * item,
        written_bytes=lambda d, item: d["lookups"] * (d["row_bytes"] + d["state_bytes"]),
    )
)


HOST_BUS = "host_bus"

OPS.register("tbe_host")(
    replace(
        TBE_SPEC,
        family=HOST_BUS,
        other_directions={
            direction: replace(spec, family=HOST_BUS)
            for direction, spec in TBE_SPEC.other_directions.items()
        },
    )
)


HOST_OPERATORS = "host_operators"
OPERATOR = "embedding_bag"
PROCESSES = "processes"


def _on_host(spec: OpSpec) -> OpSpec:
    return replace(spec, family=HOST_OPERATORS, defaults={**spec.defaults, PROCESSES: 0.0})


_SPEC = _on_host(OPS[OPERATOR])
OPS.register(f"host_{OPERATOR}")(
    replace(
        _SPEC,
        other_directions={name: _on_host(spec) for name, spec in _SPEC.other_directions.items()},
    )
)


NIC = "nic"
TAG_BYTES = 16.0
"""A key and where its row lies, beside its neighbours in a set. assumed"""

OPS.register("nic_lookup")(
    OpSpec(
        family=NIC,
        dims=("probes",),
        defaults={"lookups": 0.0, "row_bytes": 0.0, "bags": 0.0, "dim": 0.0}
        | {"messages": 0.0, "delivered_bytes": 0.0, "fetched_bytes": 0.0},
        flop=lambda d: d["lookups"] * d["dim"],
        read_bytes=lambda d, item: d["probes"] * TAG_BYTES + d["lookups"] * d["row_bytes"],
        written_bytes=lambda d, item: d["bags"] * d["dim"] * item,
    )
)

# Rows into the cache: fetched ones after a miss, or changed ones as they are written through.
OPS.register("nic_write")(
    OpSpec(
        family=NIC,
        dims=("lookups", "row_bytes"),
        defaults={"messages": 0.0, "delivered_bytes": 0.0, "fetched_bytes": 0.0},
        flop=lambda d: 0.0 * d["lookups"],
        read_bytes=lambda d, item: d["lookups"] * TAG_BYTES + 0.0 * item,
        written_bytes=lambda d, item: d["lookups"] * (d["row_bytes"] + TAG_BYTES) + 0.0 * item,
    )
)


QUERY_ORDER = "query_order"
PAIR_BYTES = 16.0
"""A pair's two queries, and what they have in common."""

OPS.register("query_order")(
    OpSpec(
        family=QUERY_ORDER,
        dims=("pairs",),
        flop=lambda d: d["pairs"],
        read_bytes=lambda d, item: PAIR_BYTES * d["pairs"],
        written_bytes=lambda d, item: PAIR_BYTES * d["pairs"],
    )
)


STORAGE = "storage"


def _nothing(dims: Dims, item_bytes: Floats) -> Floats:
    return 0.0 * dims["rows"] * item_bytes


def _row_bytes_of_drives(dims: Dims, item_bytes: Floats) -> Floats:
    return dims["rows"] * dims["row_bytes"] + 0.0 * item_bytes


OPS.register("storage_read")(
    OpSpec(
        family=STORAGE,
        dims=("rows", "row_bytes"),
        defaults={"in_flight": 0.0, "expansion": 0.0, "sharers": 0.0},
        flop=lambda d: 0.0 * d["rows"],
        read_bytes=_row_bytes_of_drives,
        written_bytes=_nothing,
    )
)
OPS.register("storage_write")(
    OpSpec(
        family=STORAGE,
        dims=("rows", "row_bytes"),
        defaults={"in_flight": 0.0, "page_rows": 1.0, "expansion": 0.0, "sharers": 0.0},
        flop=lambda d: 0.0 * d["rows"],
        read_bytes=_nothing,
        written_bytes=_row_bytes_of_drives,
    )
)
