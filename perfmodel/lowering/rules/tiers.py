"""Work on rows in host memory, on drives and in adapters: one piece, as its attributes say.

`tier::OP` is the op `OP` of the vocabulary; its dims are attributes of the same names, beside
`dtype` and `direction`. `stream` names the resource that does it. `kind` is `offload` unless the
attribute says `kernel` (the device reads the rows over its bus); `blocks` makes the host wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perfmodel.graph.ops import Op
from perfmodel.lowering.piece import LOWERINGS, TIER, Kind, Piece, Untold
from perfmodel.ops.spec import OPS


@LOWERINGS.register(f"any/{TIER}*")
def off_device(op: Op) -> Sequence[Piece]:
    """One piece."""
    name, about = op.name.removeprefix(TIER), op.attributes
    spec = OPS.get(name)
    if spec is None or not all(key in about for key in spec.dims):
        raise Untold
    dims = {key: float(about[key]) for key in (*spec.dims, *spec.defaults) if key in about}
    return (
        Piece(
            name,
            dims,
            about.get("dtype", "fp32"),
            about.get("direction", "fwd"),
            kind=cast(Kind, about.get("kind", "offload")),
            blocks=about.get("blocks") == "1",
        ),
    )
