"""Recurrent layers as cuDNN runs them: a product over all inputs, then step after step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perfmodel.lowering.arguments import FP32, TF32, tensors
from perfmodel.lowering.piece import LOWERINGS, MissingArguments, Piece, entries
from perfmodel.ops.graph import Op

_FACTS = ("steps", "batch", "inputs", "hidden", "gates", "layers", "directions")
"""Attributes of the op (`perfmodel.ops.read.recorder`), since its weights are one flat list."""
STEP_READS = 2.0
"""Per gate and hidden unit: its share of the inputs' product and of the states' product."""


@LOWERINGS.register(*entries("_cudnn_rnn"))
def recurrent(op: Op) -> Sequence[Piece]:
    """LSTM, GRU and plain layers; cuDNN multiplies in TF32, unless told otherwise."""
    return _pieces(op, _layers)


@LOWERINGS.register(*entries("_cudnn_rnn_backward"))
def recurrent_backward(op: Op) -> Sequence[Piece]:
    """Their gradients."""
    return _pieces(op, _gradients)


def _pieces(op: Op, of: Callable[[dict[str, int], str], Iterator[Piece]]) -> Sequence[Piece]:
    if any(name not in op.attributes for name in _FACTS):
        raise MissingArguments
    facts = {name: int(op.attributes[name]) for name in _FACTS}
    if not min(facts.values()):
        return ()
    dtype = tensors(op, 1)[0].dtype  # of the first gradient that is told, backward
    return tuple(of(facts, TF32 if dtype == FP32 else dtype))


def _layers(facts: dict[str, int], dtype: str) -> Iterator[Piece]:
    """A product of all inputs of a layer, then one of the state and its gates for each step; steps
    of layers above one another do not overlap, as profiles of one H200 with cuDNN 9.19 show."""
    batch, hidden = facts["batch"], facts["hidden"]
    wide, rows = facts["gates"] * hidden, facts["steps"] * batch
    yield from (_product(rows, wide, k, dtype) for k in _inputs(facts))
    for _ in range(facts["steps"] * facts["layers"] * facts["directions"]):
        yield _product(batch, wide, hidden, dtype)
        yield _gates(facts, STEP_READS, 1.0 / facts["gates"], dtype)


def _gradients(facts: dict[str, int], dtype: str) -> Iterator[Piece]:
    """The same steps from last to first: the gradients of a step's gates, of them that of the state
    before; then of each layer those of its inputs and of its two weights, of all steps at once."""
    batch, hidden = facts["batch"], facts["hidden"]
    wide, rows = facts["gates"] * hidden, facts["steps"] * batch
    for _ in range(facts["steps"] * facts["layers"] * facts["directions"]):
        yield _gates(facts, STEP_READS, 1.0, dtype)
        yield _product(batch, hidden, wide, dtype)
    for k in _inputs(facts):
        yield _product(rows, k, wide, dtype)
        yield _product(wide, k, rows, dtype)
        yield _product(wide, hidden, rows, dtype)


def _inputs(facts: dict[str, int]) -> Iterator[int]:
    """Features that each layer reads, in each direction."""
    for layer in range(facts["layers"]):
        read = facts["hidden"] * facts["directions"] if layer else facts["inputs"]
        yield from [read] * facts["directions"]


def _product(m: int, n: int, k: int, dtype: str) -> Piece:
    return Piece("mm", {"b": 1.0, "m": float(m), "n": float(n), "k": float(k)}, dtype)


def _gates(facts: dict[str, int], reads: float, writes: float, dtype: str) -> Piece:
    elements = float(facts["batch"] * facts["gates"] * facts["hidden"])
    dims = {"elements": elements, "reads": reads, "writes": writes, "flop_per_element": 10.0}
    return Piece("elementwise", dims, FP32 if dtype == TF32 else dtype)
