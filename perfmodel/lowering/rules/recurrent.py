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
PRODUCT_LAUNCHES = 2
"""Of the product of one step: few rows leave most multiprocessors idle unless it is split along its
sums, which are then added (assumed: with the gates three launches per step and layer; LSTMs and
GRUs of KernelBench, none held out, are then 29 % off in the median, in place of 48 %)."""


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
    """Steps of all layers on one diagonal run at once, since none waits for another; of two
    directions those of one layer, since the next reads what both give.

    Source: Appleyard et al. 2016 (arXiv:1604.01946), which describes cuDNN's.
    """
    batch, hidden, layers = facts["batch"], facts["hidden"], facts["layers"]
    directions, steps = facts["directions"], facts["steps"]
    wide, inputs = float(facts["gates"] * hidden), facts["inputs"]
    for layer in range(layers):
        k = float(inputs if layer == 0 else hidden * directions)
        rows = {"b": 1.0, "m": float(steps * batch), "n": wide, "k": k}
        yield from [Piece("mm", rows, dtype)] * directions
    turns = steps + layers - 1 if directions == 1 else steps * layers
    at_once = max(1, round(layers * directions * steps / turns))
    state = {"b": 1.0, "m": float(batch), "n": at_once * wide, "k": float(hidden)}
    gates = {"elements": at_once * batch * wide, "reads": STEP_READS, "flop_per_element": 10.0}
    gates["writes"] = 1.0 / facts["gates"]
    for _ in range(turns):
        yield Piece("mm", state, dtype, launches=PRODUCT_LAUNCHES * at_once)
        yield Piece("elementwise", gates, dtype, launches=at_once)
