"""Recurrent layers as cuDNN runs them: a product over all inputs, then step after step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.lowering.arguments import FP32, TF32, tensor
from perfmodel.lowering.piece import LOWERINGS, MissingArguments, Piece, entries
from perfmodel.ops.graph import Op

_FACTS = ("steps", "batch", "inputs", "hidden", "gates", "layers", "directions")
"""Attributes of the op (`perfmodel.ops.read.module`), since its weights are one flat list."""
STEP_READS = 2.0
"""Per gate and hidden unit: its share of the inputs' product and of the states' product."""


@LOWERINGS.register(*entries("_cudnn_rnn"))
def recurrent(op: Op) -> Sequence[Piece]:
    """LSTM, GRU and plain layers; cuDNN multiplies in TF32, unless told otherwise."""
    if any(name not in op.attributes for name in _FACTS):
        raise MissingArguments
    facts = {name: int(op.attributes[name]) for name in _FACTS}
    if not min(facts.values()):
        return ()
    dtype = tensor(op, 0).dtype
    return tuple(_layers(facts, TF32 if dtype == FP32 else dtype))


def _layers(facts: dict[str, int], dtype: str) -> Iterator[Piece]:
    """A product of all inputs of a layer, then one of the state and its gates for each step; steps
    of layers above one another do not overlap, as profiles of one H200 with cuDNN 9.19 show."""
    batch, hidden, layers = facts["batch"], facts["hidden"], facts["layers"]
    directions, steps = facts["directions"], facts["steps"]
    wide, inputs = float(facts["gates"] * hidden), facts["inputs"]
    for layer in range(layers):
        k = float(inputs if layer == 0 else hidden * directions)
        rows = {"b": 1.0, "m": float(steps * batch), "n": wide, "k": k}
        yield from [Piece("mm", rows, dtype)] * directions
    state = {"b": 1.0, "m": float(batch), "n": wide, "k": float(hidden)}
    gates = {"elements": batch * wide, "reads": STEP_READS, "flop_per_element": 10.0}
    gates["writes"] = 1.0 / facts["gates"]
    for _ in range(steps * layers * directions):
        yield Piece("mm", state, dtype)
        yield Piece("elementwise", gates, FP32 if dtype == TF32 else dtype)
