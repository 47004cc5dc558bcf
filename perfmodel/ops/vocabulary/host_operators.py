"""PyTorch's `embedding_bag` on rows in host memory, run by one rank's host threads beside a device.

Its dims and directions are those of the operator on a CPU.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops.spec import OPS

HOST_OPERATORS = "host_operators"
OPERATOR = "embedding_bag"

_SPEC = OPS[OPERATOR]
OPS.register(f"host_{OPERATOR}")(
    replace(
        _SPEC,
        family=HOST_OPERATORS,
        other_directions={
            name: replace(spec, family=HOST_OPERATORS)
            for name, spec in _SPEC.other_directions.items()
        },
    )
)
