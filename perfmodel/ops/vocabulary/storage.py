"""Rows of embedding tables on a node's drives, as one rank reads and writes them.

`rows` of `row_bytes` at random places; `in_flight` reads that the rank keeps going at a time (0: as
many as it has rows). A drive moves whole sectors: how many more bytes that is, the tier's model
says. `page_rows`: how many of a write's rows share a page (a log that is written in turn has many).
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

STORAGE = "storage"


def _nothing(dims: Dims, item_bytes: Floats) -> Floats:
    return 0.0 * dims["rows"] * item_bytes


def _rows(dims: Dims, item_bytes: Floats) -> Floats:
    return dims["rows"] * dims["row_bytes"] + 0.0 * item_bytes


OPS.register("storage_read")(
    OpSpec(
        family=STORAGE,
        dims=("rows", "row_bytes"),
        defaults={"in_flight": 0.0},
        flop=lambda d: 0.0 * d["rows"],
        read_bytes=_rows,
        written_bytes=_nothing,
    )
)
OPS.register("storage_write")(
    OpSpec(
        family=STORAGE,
        dims=("rows", "row_bytes"),
        defaults={"in_flight": 0.0, "page_rows": 1.0},
        flop=lambda d: 0.0 * d["rows"],
        read_bytes=_nothing,
        written_bytes=_rows,
    )
)
