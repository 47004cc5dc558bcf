"""Rows of embedding tables in host memory, as one rank's host threads read and update them.

`lookups` rows of `row_bytes` each, repeats counted, of which `unique_rows` are distinct (0: as many
as the lookups); `bags` are what they are pooled to, `state_bytes` the optimizer's state per row.
The row's dtype is that of gradients and pooled vectors; `dim` their width.
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

HOST_MEMORY = "host_memory"
KEY_BYTES = 8.0
_DEFAULTS = {"unique_rows": 0.0, "state_bytes": 0.0}


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
