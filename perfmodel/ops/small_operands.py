"""Operands that cannot be of full size, told by the order of a table of graphs.

`add`, `mul` and `div` of the measurement table read two operands of `rows x cols`. Tables of whole
graphs write the same row where one of them is a mask or a number that is broadcast, and have no
edges to tell. Their order does: an op reads what ops before it wrote. Where those wrote only one
value of that size, the other operand is smaller; to the memory it is what a number is.

Two values that differ by a number count as one: nobody adds `x` to `x / 8`. What copies move and
what other ops without `rows x cols` read is of a size that the table does not say: any value up to
that size may have been there. A full operand that no op before read or wrote (a parameter) is
taken for a small one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("graph", "node_idx")
"""What a table of graphs has: rows in order, those of one node side by side."""
FORWARD = "fw"
SCALAR_OF = {"add": "add_scalar", "mul": "mul_scalar", "div": "div_scalar"}
"""Op on two operands, and that on one operand and a number."""


def with_small_operands(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with ops on one operand where the other cannot be of full size.

    A frame without the columns `graph` and `node_idx` comes back as it is. `phase` tells forward
    (`fw`) from what follows; the first op of a node's backward, the gradient of its first operand,
    reads the same small operand. Raises `ModelError` for an unknown op and impossible dims.
    """
    if not set(COLUMNS) <= set(frame):
        return frame
    rows = Rows.from_frame(frame)
    op = np.array(rows.op, object)
    forward = _text_column(frame, "phase", FORWARD) == FORWARD
    written, unsure = _sizes(rows)
    is_value = forward & ~np.isin(op, list(SCALAR_OF.values()))
    graph = frame["graph"].astype("category").cat.codes.to_numpy(np.int64)
    values = _before(graph, written, is_value)
    largest = _largest_before(graph, np.where(forward, unsure, 0.0))
    small = forward & np.isin(op, list(SCALAR_OF)) & (values == 1) & (largest < written)
    node = frame["node_idx"].to_numpy()
    follows = np.zeros(len(frame), bool)
    follows[1:] = small[:-1] & (op[1:] == op[:-1]) & (node[1:] == node[:-1])
    follows &= ~forward & (np.r_[-1, graph[:-1]] == graph)
    names = [
        SCALAR_OF[each] if is_one else each
        for each, is_one in zip(op, small | follows, strict=True)
    ]
    return frame.assign(op=names)


def _text_column(frame: pd.DataFrame, column: str, usual: str) -> NDArray[np.object_]:
    values = frame[column] if column in frame else np.full(len(frame), usual, object)
    return np.asarray(values, object)


def _sizes(rows: Rows) -> tuple[Floats, Floats]:
    """(elements that each row writes, the most elements of a value that it may have read or
    written beside)."""
    written, unsure = np.zeros((2, len(rows)))
    for op, index in rows.groups():
        spec, dims = OPS[op], rows.dims_of(op, index)
        one = np.ones(len(index))
        written[index] = spec.written_bytes(dims, one)
        if "elements" in dims:
            unsure[index] = spec.read_bytes(dims, one) + written[index]
        elif "cols" not in dims:
            unsure[index] = spec.read_bytes(dims, one)
    return written, unsure


def _before(graph: Ints, size: Floats, counts: NDArray[np.bool_]) -> Floats:
    """Rows before each of its graph and of its size that count."""
    import pandas as pd

    sizes = pd.DataFrame({"graph": graph, "size": size, "counts": counts.astype(np.float64)})
    so_far = sizes.groupby(["graph", "size"])["counts"].cumsum()
    return np.asarray(so_far - sizes["counts"], np.float64)


def _largest_before(graph: Ints, size: Floats) -> Floats:
    """The largest size among the rows before each of its graph; 0 for the first."""
    import pandas as pd

    sizes = pd.DataFrame({"graph": graph, "size": size})
    so_far = sizes.groupby("graph")["size"].cummax()
    return np.asarray(so_far.groupby(sizes["graph"]).shift(fill_value=0.0), np.float64)
