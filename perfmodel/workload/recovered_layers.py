"""The dense part of a DLRM in the ops of its forward pass: both MLPs and the interaction; and words
of a program that tell its loss, optimizers and software."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from perfmodel.ops.graph import FORWARD, Op, Tensor
from perfmodel.workload.recorded_layers import RecordedLayers
from perfmodel.workload.settings import Interaction, Model


class NoDlrm(Exception):
    """Why the ops are not those of a DLRM, in a few words."""


@dataclass(frozen=True)
class Product:
    """A layer's product `[m, k] x [k, n]`, by an op at `index`; `has_bias`: `aten::addmm`."""

    index: int
    m: int
    k: int
    n: int
    has_bias: bool
    dtype: str


@dataclass(frozen=True)
class DensePart:
    """What the ops say of the dense part; `batch` samples of one rank. `sparse_width` are the dims
    of all tables together, `largest_layer` the elements of its weights and bias; not known of
    layers that are `recorded`."""

    batch: int
    model: Model
    interaction: Interaction
    precision: str
    sparse_width: int | None = None
    largest_layer: int = 0
    recorded: RecordedLayers | None = None


_PRODUCTS = {"aten::addmm": 1, "aten::mm": 0}
"""Ops that multiply by a layer's weights, and which argument the activations are."""
_OTHER = (
    *("*conv*", "*softmax", "*attention*", "*norm*", "*lstm*", "*gru*", "*baddbmm", "*cumsum"),
    *("*einsum", "*topk*", "*gelu*", "*silu*", "*dropout*"),
)
"""Names of layers that no DLRM has."""


def dense_part(ops: Sequence[Op]) -> DensePart:
    """The dense part of the step that `ops` are. Raises `NoDlrm`."""
    forward = [(index, op) for index, op in enumerate(ops) if op.phase == FORWARD]
    products = list(_products(forward))
    if not products:
        raise NoDlrm("it has no linear layer")
    batch = products[0].m
    if other := next((each for each in products if each.m != batch), None):
        raise NoDlrm(f"a layer is given {other.m} rows of {batch} samples (op {other.index})")
    squares = [(index, op.tensors[0]) for index, op in forward if op.name == "aten::bmm"]
    for _, op in forward:
        if any(fnmatchcase(op.name, f"aten::{each}") for each in _OTHER):
            raise NoDlrm(f"it calls {op.name}")
    if len(squares) > 1:
        raise NoDlrm(f"it multiplies {len(squares)} pairs of batched matrices")
    found = _dot(products, *squares[0]) if squares else _joined(products)
    bottom, interaction, top, width = found
    for name, layers in (("bottom", bottom), ("top", top)):
        if not layers or any(before.n != after.k for before, after in pairwise(layers)):
            raise NoDlrm(f"its {name} layers are not one MLP")
    if top[-1].n != 1:
        raise NoDlrm(f"its last layer has {top[-1].n} outputs")
    model = Model(bottom[0].k, tuple(p.n for p in bottom), tuple(p.n for p in top))
    largest = max((p.k + p.has_bias) * p.n for p in products)
    return DensePart(batch, model, interaction, products[-1].dtype, width, largest)


def _products(forward: Sequence[tuple[int, Op]]) -> Iterator[Product]:
    for index, op in forward:
        at = _PRODUCTS.get(op.name)
        if at is None or len(op.tensors) < at + 2:
            continue
        given, weight = op.tensors[at : at + 2]
        if len(given.shape) == len(weight.shape) == 2:
            (m, k), n = given.shape, weight.shape[1]
            yield Product(index, m, k, n, at == 1, given.dtype)


_Found = tuple[Sequence[Product], Interaction, Sequence[Product], int]
"""Bottom layers, interaction, top layers, dims of all tables together."""


def _dot(products: Sequence[Product], index: int, features: Tensor) -> _Found:
    """Products of all pairs of `features` `[b, vectors, dim]` by the op at `index`."""
    _, vectors, dim = features.shape
    bottom, top = ([p for p in products if (p.index < index) == is_before] for is_before in (1, 0))
    if not top or not bottom or bottom[-1].n != dim:
        raise NoDlrm("what it multiplies by pairs are not a bottom MLP's features and rows")
    pad_to = _padding(dim + vectors * (vectors - 1) // 2, top[0].k)
    return bottom, Interaction("dot", pad_to=pad_to), top, (vectors - 1) * dim


def _joined(products: Sequence[Product]) -> _Found:
    """Features side by side, perhaps through cross layers: a product without bias to a low rank,
    one with back. Where a layer gets more than the one before it gives, the tables' rows came."""
    at = next((n for n, p in enumerate(products) if n and p.k > products[n - 1].n), 0)
    if not at:
        raise NoDlrm("no layer gets rows of tables beside a bottom MLP's features")
    bottom, rest, joined = products[:at], products[at:], products[at].k
    layers = 0
    while _is_cross(rest[2 * layers : 2 * layers + 2], joined):
        layers += 1
    top, width = rest[2 * layers :], joined - bottom[-1].n
    if not layers:
        return bottom, Interaction("cat"), top, width
    pad_to = _padding(joined, top[0].k) if top else 1
    return bottom, Interaction("dcn_v2", layers, rest[0].n, pad_to), top, width


def _is_cross(pair: Sequence[Product], width: int) -> bool:
    if len(pair) < 2:
        return False
    down, up = pair
    sizes = (down.k, up.n, down.n) == (width, width, up.k)
    return sizes and up.has_bias and not down.has_bias


_PADDINGS = (1, 8, *range(2, 4097))
"""Multiples that widths are rounded up to, the usual ones of half-precision products first."""


def _padding(width: int, given: int) -> int:
    """The multiple that `width` is rounded up to where `given` is what a layer gets."""
    fits = (each for each in _PADDINGS if -(-width // each) * each == given)
    pad_to: int | None = next(fits, None)
    if pad_to is None:
        raise NoDlrm(f"its top MLP gets {given} features, its interaction makes {width}")
    return pad_to


SIGNS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("training.loss", "bce_with_logits", ("*aten::binary_cross_entropy_with_logits",)),
    ("training.loss", "bce", ("*aten::binary_cross_entropy",)),
    ("training.loss", "mse", ("*aten::mse_loss",)),
    ("training.dense_optimizer", "adam", ("*Optimizer.step#*Adam*", "optimizer aten::*lerp*")),
    ("training.dense_optimizer", "adam", ("optimizer *fused_adam*",)),
    ("training.dense_optimizer", "adagrad", ("*Optimizer.step#*Adagrad*", "optimizer *addcdiv*")),
    ("training.dense_optimizer", "sgd", ("*Optimizer.step#*SGD*", "optimizer *add_*")),
    ("implementation.name", "torchrec", ("*All2All_Pooled*", "*fbgemm::permute_*")),
    ("implementation.name", "torchrec", ("*fbgemm::asynchronous_complete_cumsum",)),
    ("implementation.name", "fbgemm", ("*fbgemm::*lookup*",)),
    ("implementation.name", "reference", ("input aten::to",)),
    ("implementation.name", "pytorch", ("*aten::*embedding*",)),
    ("implementation.optimizer_style", "fused", ("*Optimizer.step#Fused*", "optimizer *_fused_*")),
    ("implementation.optimizer_style", "foreach", ("optimizer aten::_foreach_*",)),
    ("implementation.optimizer_style", "loop", ("optimizer aten::add*",)),
    ("implementation.prefetch", True, ("* prefetch", "* ## wait_for_batch ##")),
    ("implementation.exchange_precision", "int8", ("forward fbgemm::FloatToFused8Bit*",)),
    ("implementation.exchange_precision", "fp8", ("forward fbgemm::FloatToFP8*",)),
)
"""Settings, values, and what in a program tells them: names of its ops, of annotations around them
and what a pipeline does, each behind its phase. The first that fits holds."""


def told_by_signs(ops: Sequence[Op]) -> dict[str, tuple[Any, str]]:
    """Per setting that a sign in `ops` tells, its value and the sign."""
    words = dict.fromkeys(f"{op.phase} {op.name}" for op in ops)
    for key in ("annotation", "pipeline"):
        words |= dict.fromkeys(
            f"{op.phase} {op.attributes[key]}" for op in ops if key in op.attributes
        )
    found: dict[str, tuple[Any, str]] = {}
    for setting, value, patterns in SIGNS:
        if setting not in found:
            hit = next((w for pattern in patterns for w in words if fnmatchcase(w, pattern)), None)
            if hit is not None:
                found[setting] = value, hit.partition(" ")[2]
    return found
