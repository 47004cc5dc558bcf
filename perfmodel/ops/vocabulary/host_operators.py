"""PyTorch's `embedding_bag` on rows in host memory, run by one rank's host threads beside a device.

Its dims and directions are those of the operator on a CPU; `processes` of a node run it at the same
time, each on a share of the cores (0: one per GPU).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops.spec import OPS, OpSpec

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
