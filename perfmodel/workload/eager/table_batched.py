"""FBGEMM's table-batched embeddings (TBE): all tables of a rank in one call, fused update."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import QUANTISED, row_bytes
from perfmodel.ops.graph import Tensor
from perfmodel.ops.read.attributes import Lookups
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.eager.tensors import to_dtype, zero

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

    def described(self, about: dict[str, str]) -> Batched:
        """The operator, its lookups described by `about`."""
        return replace(self, attributes={**self.attributes, **about})


def batched(
    r: Recorder, about: Lookups, *, dtype: str, optimizer: str, is_modern: bool = True
) -> Batched:
    """The operator for the tables that `about` looks up."""
    rows, dims = np.array(about.hash_size), np.array(about.dim)
    tables, elements = len(rows), int(np.dot(rows, dims))
    state = int(rows.sum()) if optimizer == "rowwise_adagrad" else elements
    attributes = about.to_attributes() | {"weights_dtype": dtype, "optimizer": optimizer}
    if dtype in QUANTISED:
        if r.tape is not None:
            raise WorkloadError(f"rows of {dtype} can be read, but not trained")
        stored = row_bytes(dtype, dims)
        weights = r.tensor((int(np.dot(stored, rows)),), "uint8")
        optimizer, attributes["row_bytes"] = "sgd", str(float(np.average(stored)))
    else:
        weights = r.tensor((elements,), dtype)
    r.parameter(weights)
    return Batched(
        weights,
        r.tensor((tables,), "int64"),
        r.tensor((tables + 1,), "int32"),
        r.tensor((tables + 1,), "int64"),
        tuple(r.tensor((state,)) for _ in range(_STATE[optimizer])),
        int(dims.sum()),
        int(dims.max()),
        optimizer,
        is_modern,
        attributes,
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
    version = "_pt2" if tables.is_modern else ""
    name = f"fbgemm::split_embedding_codegen_lookup_{tables.optimizer}_function{version}"
    rows = int(tables.weights.shape[0] // tables.widest)
    sizes = (tables.total_dim, tables.widest, tables.hash_sizes, rows.bit_length())
    given = (tables.weights, tables.offsets, tables.dims, *sizes, flat, starts, SUM)
    out = r.made(name, given, (bags, tables.total_dim), output, about=about)

    def backward(gradient: Tensor) -> Gradients:
        if tables.is_modern:
            update(r, tables, flat, starts, gradient)
        else:
            # that of 2022 sorts indices, sums gradients per row and updates rows by itself
            for _ in range(5):
                r.made("aten::empty_like", (flat,), flat.shape)
            for shape in (flat.shape, (1,), (), (1,)):
                zero(r, r.tensor(shape, "int32"))
        r.now(about)
        return [None]

    node = f"torch::autograd::CppNode<SplitLookupFunction_{tables.optimizer}_Op{version}>"
    return r.track(node, (tables.weights,), out, backward)


def _look_up_quantised(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, bags: int, output: str
) -> Tensor:
    """The operator for rows that are unpacked as they are added up; its indices are int32."""
    flat, starts = (to_dtype(r, each, "int32") for each in (indices, offsets))
    wrapped = (tables.weights, None, None, None, tables.offsets, tables.offsets, tables.dims)
    rest = (tables.total_dim, tables.widest, tables.hash_sizes, flat, starts, SUM)
    name = "fbgemm::int_nbit_split_embedding_codegen_lookup_function"
    shape = (bags, tables.total_dim)
    return r.made(name, (*wrapped, *rest), shape, output, about=tables.attributes)


def update(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, gradient: Tensor
) -> None:
    """From the gradient of pooled rows to updated tables: the modern backward operator."""
    kind = "cpu" if r.is_cpu else "exact_cuda"
    stem = f"fbgemm::split_embedding_backward_codegen_{tables.optimizer}_unweighted"
    given = (gradient, tables.weights, tables.offsets, tables.dims, tables.widest, False)
    rest = (tables.hash_sizes, 0, indices, offsets, SUM)
    r.begin(f"{stem}_pt2_wrapper", *given, *rest)
    r.leaf(f"{stem}_{kind}", (*given, *rest), about=tables.attributes)
    r.end(about=tables.attributes)
