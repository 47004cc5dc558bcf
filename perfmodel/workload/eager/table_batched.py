"""FBGEMM's table-batched embeddings (TBE): all tables of a rank in one call, fused update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import QUANTISED, row_bytes
from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.creation import to_dtype, zero
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule, rule_of_one

SUM = 0
WARN = 1
_STATE = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 1, "adam": 2}
"""How many state tensors each fused optimizer keeps: row-wise Adagrad one number per row."""


@dataclass(frozen=True)
class Batched:
    """The tables of one rank as one operator: their weights in one tensor, offsets beside it.

    `is_modern`: the operators of FBGEMM 1.0 and later (`…_pt2`), else those of 2022.
    """

    weights: Tensor
    offsets: Tensor
    dims: Tensor
    hash_sizes: Tensor
    states: tuple[Tensor, ...]
    total_dim: int
    widest: int
    optimizer: str
    is_modern: bool
    attributes: dict[str, str]


def batched(
    r: Recorder,
    rows: tuple[int, ...],
    dims: tuple[int, ...],
    *,
    dtype: str,
    optimizer: str,
    is_modern: bool,
    attributes: dict[str, str],
) -> Batched:
    """The operator for tables of `rows` and `dims`."""
    elements = sum(count * dim for count, dim in zip(rows, dims, strict=True))
    state = sum(rows) if optimizer == "rowwise_adagrad" else elements
    about = {**attributes, "weights_dtype": dtype, "optimizer": optimizer}
    if dtype in QUANTISED:
        if r.tape is not None:
            raise WorkloadError(f"rows of {dtype} can be read, but not trained")
        stored = row_bytes(dtype, dims)
        weights = r.tensor((int(np.dot(stored, rows)),), "uint8")
        optimizer, about = "sgd", about | {"row_bytes": str(float(np.average(stored)))}
    else:
        weights = r.tensor((elements,), dtype)
    if r.tape is not None:
        r.tape.parameter(weights)
    tables = len(rows)
    return Batched(
        weights,
        r.tensor((tables,), "int64"),
        r.tensor((tables + 1,), "int32"),
        r.tensor((tables + 1,), "int64"),
        tuple(r.tensor((state,)) for _ in range(_STATE[optimizer])),
        sum(dims),
        max(dims),
        optimizer,
        is_modern,
        about,
    )


def look_up(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, bags: int, output: str = "fp32"
) -> Tensor:
    """Pooled rows of all tables, side by side: `[bags, total dim]` of dtype `output`."""
    about = tables.attributes
    if about["weights_dtype"] in QUANTISED:
        return _look_up_quantised(r, tables, indices, offsets, bags, output)
    flat, starts = indices, offsets
    if not r.is_bare:
        flat, starts = to_dtype(r, indices, "int64"), to_dtype(r, offsets, "int64")
        warning = r.tensor((1,), "int64")
        r.begin("fbgemm::bounds_check_indices", tables.offsets, flat, starts, WARN, warning)
        zero(r, warning)
        r.end(about=about)
    out = r.tensor((bags, tables.total_dim), output)
    suffix = "_function_pt2" if tables.is_modern else "_function"
    name = f"fbgemm::split_embedding_codegen_lookup_{tables.optimizer}{suffix}"
    nothing = r.tensor((0,))
    if tables.is_modern:
        stored: tuple[Tensor, ...] | Tensor = (tables.weights, tables.offsets, tables.offsets)
        r.begin(name, nothing, stored, tables.dims, *_sizes(tables), flat, starts, SUM)
        wrapped = (tables.weights, None, None, None, tables.offsets, tables.offsets, tables.dims)
        rest = (tables.total_dim, tables.widest, tables.hash_sizes, flat, starts, SUM)
        r.begin("fbgemm::split_embedding_codegen_forward_unweighted_pt2_wrapper", *wrapped, *rest)
        kind = "cpu" if r.is_cpu else "cuda"
        r.leaf(
            f"fbgemm::split_embedding_codegen_forward_unweighted_{kind}",
            (*wrapped, *rest),
            out,
            about=about,
        )
        r.end(out, about=about)
    else:
        placeholders = (nothing, tables.weights, r.tensor((0,)), r.tensor((0, 0)))
        places = (r.tensor(tables.offsets.shape, "int32"), tables.offsets, tables.dims)
        r.begin(name, *placeholders, *places, *_sizes(tables), flat, starts, SUM)
        r.leaf("aten::empty", (out.shape, 6, 0, r.place, None, None), out)
    r.end(out, about=about)
    if r.tape is not None:
        version = "_pt2" if tables.is_modern else ""
        node = f"torch::autograd::CppNode<SplitLookupFunction_{tables.optimizer}_Op{version}>"
        saved = (tables, flat, starts)
        r.tape.add(f"fbgemm::lookup{version}", (tables.weights,), (out,), saved, node)
    return out


def _look_up_quantised(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, bags: int, output: str
) -> Tensor:
    """The operator for rows that are unpacked as they are added up; its indices are int32."""
    flat, starts = (to_dtype(r, each, "int32") for each in (indices, offsets))
    out = r.tensor((bags, tables.total_dim), output)
    wrapped = (tables.weights, None, None, None, tables.offsets, tables.offsets, tables.dims)
    rest = (tables.total_dim, tables.widest, tables.hash_sizes, flat, starts, SUM)
    name = "fbgemm::int_nbit_split_embedding_codegen_lookup_function"
    r.leaf(name, (*wrapped, *rest), out, about=tables.attributes)
    return out


def _sizes(tables: Batched) -> tuple[int, int, Tensor, int]:
    rows = int(tables.weights.shape[0] // tables.widest)
    return tables.total_dim, tables.widest, tables.hash_sizes, rows.bit_length()


@rule("fbgemm::lookup", "torch::autograd::CppNode<SplitLookupFunction>")
def _backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Sorts the indices, sums gradients per row, updates rows: one node, several kernels."""
    tables, flat, _ = node.saved
    for _ in range(5):
        r.leaf("aten::empty_like", (flat, None, None, None, None, None), r.tensor(flat.shape))
    for shape in (flat.shape, (1,), (), (1,)):
        zero(r, r.tensor(shape, "int32"))
    r.now(tables.attributes)
    return [None]


@rule_of_one("fbgemm::lookup_pt2", "torch::autograd::CppNode<SplitLookupFunction_pt2>")
def _backward_pt2(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """The same, through a wrapper that picks the kernel."""
    tables, flat, starts = node.saved
    update(r, tables, flat, starts, gradient)
    r.now(tables.attributes)
    return [None]


def update(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, gradient: Tensor | None
) -> None:
    """From the gradient of pooled rows to updated tables: the modern backward operator."""
    kind = "cpu" if r.is_cpu else "exact_cuda"
    stem = f"fbgemm::split_embedding_backward_codegen_{tables.optimizer}_unweighted"
    given = (gradient, tables.weights, None, None, None, tables.offsets, tables.offsets)
    rest = (tables.dims, tables.widest, False, tables.hash_sizes, 0, indices, offsets, SUM)
    r.begin(f"{stem}_pt2_wrapper", *given, *rest)
    r.leaf(f"{stem}_{kind}", (*given, *rest), about=tables.attributes)
    r.end(about=tables.attributes)
