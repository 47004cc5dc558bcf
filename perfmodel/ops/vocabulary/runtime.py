"""What a framework's runtime takes on the host beside its operators: calls of a compiled step."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

RUNTIME, FUNCTION_CALL = "runtime", "function_call"


def _none(dims: Dims) -> Floats:
    return 0.0 * dims["calls"]


OPS.register(FUNCTION_CALL)(
    OpSpec(
        family=RUNTIME,
        dims=("calls",),
        flop=_none,
        read_bytes=lambda dims, item_bytes: 0.0 * item_bytes,
        written_bytes=lambda dims, item_bytes: 0.0 * item_bytes,
    )
)
