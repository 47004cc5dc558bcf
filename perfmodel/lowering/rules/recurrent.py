"""Recurrent layers as cuDNN runs them: a product over all inputs, then step after step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.lowering.arguments import tensor
from perfmodel.lowering.piece import LOWERINGS, MissingArguments, Piece, entries
from perfmodel.ops.graph import Op

_FACTS = ("steps", "batch", "inputs", "hidden", "gates", "layers", "directions")
"""Attributes of the op (`perfmodel.ops.read.module`), since its weights are one flat list."""
STEP_READS = 2.0
"""Per gate and hidden unit: its share of the inputs' product and of the states' product."""


@LOWERINGS.register(*entries("_cudnn_rnn"))
def recurrent(op: Op) -> Sequence[Piece]:
    """LSTM, GRU and plain layers; a step waits for the one before, a layer for the one below."""
    if any(name not in op.attributes for name in _FACTS):
        raise MissingArguments
    facts = {name: int(op.attributes[name]) for name in _FACTS}
    if not min(facts.values()):
        return ()
    return tuple(_layers(facts, tensor(op, 0).dtype))


def _layers(facts: dict[str, int], dtype: str) -> Iterator[Piece]:
    batch, hidden = facts["batch"], facts["hidden"]
    wide, inputs = float(facts["gates"] * hidden), facts["inputs"]
    state = {"b": 1.0, "m": float(batch), "n": wide, "k": float(hidden)}
    gates = {"elements": batch * wide, "reads": STEP_READS, "flop_per_element": 10.0}
    for _ in range(facts["layers"]):
        for _ in range(facts["directions"]):
            rows = float(facts["steps"] * batch)
            yield Piece("mm", {"b": 1.0, "m": rows, "n": wide, "k": float(inputs)}, dtype)
            for _ in range(facts["steps"]):
                yield Piece("mm", state, dtype)
                yield Piece("elementwise", gates | {"writes": 1.0 / facts["gates"]}, dtype)
        inputs = hidden * facts["directions"]
