"""One step of a dense optimizer over `tensors` tensors of `elements` each.

Per element: the gradient and the parameter are read, the parameter written; each state tensor is
read and written.
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats
from perfmodel.ops.streaming import streaming

OPTIMIZER = "optimizer"
_STATES_AND_FLOP = {
    "sgd": (0.0, 2.0),
    "adagrad": (1.0, 6.0),
    "rowwise_adagrad": (0.0, 6.0),
    "adam": (2.0, 12.0),
    "adamw": (2.0, 14.0),
    "lamb": (2.0, 20.0),
}


def _all(dims: Dims) -> Floats:
    return dims["elements"] * dims["tensors"]


for _name, (_states, _flop) in _STATES_AND_FLOP.items():
    OPS.register(f"optimizer_{_name}")(
        streaming(
            _all,
            ("elements", "tensors"),
            reads=2.0 + _states,
            writes=1.0 + _states,
            flop=_flop,
            family=OPTIMIZER,
            directions=("update",),
        )
    )
