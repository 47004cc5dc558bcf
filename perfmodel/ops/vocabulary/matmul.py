"""Matrix products: b times (m x k) times (k x n)."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

MATMUL = "matmul"


def _flop(dims: Dims) -> Floats:
    return 2.0 * dims["b"] * dims["m"] * dims["n"] * dims["k"]


def _read_bytes(dims: Dims, item_bytes: Floats) -> Floats:
    operands = dims["b"] * (dims["m"] * dims["k"] + dims["k"] * dims["n"])
    return item_bytes * (operands + dims.get("bias", 0.0) * dims["n"])


def _written_bytes(dims: Dims, item_bytes: Floats) -> Floats:
    return item_bytes * dims["b"] * dims["m"] * dims["n"]


def _matmul(dims: tuple[str, ...], **defaults: float) -> OpSpec:
    return OpSpec(
        family=MATMUL,
        dims=dims,
        defaults=defaults,
        flop=_flop,
        read_bytes=_read_bytes,
        written_bytes=_written_bytes,
    )


OPS.register("bmm")(_matmul(("b", "m", "n", "k")))
OPS.register("linear")(_matmul(("m", "n", "k"), b=1, bias=1))
OPS.register("mm")(_matmul(("m", "n", "k"), b=1))
