"""`nn.EmbeddingBag`, elements picked by index, and the sparse gradients of both.

FBGEMM's table-batched embeddings (TBE): all tables of a rank in one call, fused update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import Tensor
from perfmodel.ops.lookups import DENSE_BACKWARD, DENSE_LOOKUP, SPARSE, STATES_BYTES, Lookups
from perfmodel.ops.spec import QUANTISED, item_bytes, row_bytes
from perfmodel.workload.eager.calls import Gradients, Shape, is_contiguous
from perfmodel.workload.eager.recorder import Recorder

ENDLESS = 2**63 - 1
"""The end of a slice that has none."""


def index_pairs(r: Recorder, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`x[:, rows, columns]`: of x `[b, n, n]`, the elements at those places, `[b, p]`.

    Places that lie on the host are sent to the device, each time.
    """
    r.begin("aten::index", x, (None, rows, columns))
    for index in (rows, columns):
        _on_device(r, index)
    out = r.tensor((x.shape[0], rows.shape[0]), x.dtype)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        of_x = r.new_zeros(gradient, x.shape, gradient.dtype)
        r.begin("aten::_index_put_impl_", of_x, (None, rows, columns), gradient, True, True)
        if not r.is_cpu:
            _sorted_put(r, of_x, gradient, rows, columns)
        r.end(of_x)
        return [of_x]

    return r.track("IndexBackward0", (x,), out, backward)


def full_slice(r: Recorder, x: Tensor) -> Tensor:
    """`x[:]`, as older PyTorch takes it before indices that follow."""
    r.begin("aten::slice", x, 0, 0, ENDLESS, 1)
    out = r.as_strided(x, x.shape, x.strides, 0)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        shape = gradient.shape
        r.begin("aten::slice_backward", gradient, shape, 0, 0, ENDLESS, 1)
        r.begin("aten::zeros", shape, gradient.dtype)
        of_x = r.zero(r.tensor(shape, gradient.dtype))
        r.end(of_x)
        r.copy(full_slice(r, of_x), gradient)
        r.end(of_x)
        return [of_x]

    return r.track("SliceBackward0", (x,), out, backward)


def _sorted_put(r: Recorder, x: Tensor, gradient: Tensor, rows: Tensor, columns: Tensor) -> None:
    """What a GPU calls around its sort: linear places, then room for them sorted.

    Source: execution trace of DLRM_default, PyTorch of 2022.
    """
    linear = []
    for index, size, stride in zip((rows, columns), x.shape[1:], x.strides[1:], strict=True):
        wrapped, scaled = (r.tensor(index.shape, "int64", place=index.device) for _ in range(2))
        r.leaf("aten::remainder", (index, size), wrapped)
        r.leaf("aten::mul", (wrapped, stride), scaled)
        linear.append(_on_device(r, scaled))
    r.leaf("aten::add_", (linear[0], linear[1], 1), linear[0])
    if not is_contiguous(gradient):
        r.clone(gradient)
    places = linear[0]
    r.leaf("aten::divide_", (places, 1, "trunc"), places)
    r.made("aten::arange", (places.shape[0], 4, 0, r.place, None), places.shape, "int64")


def _on_device(r: Recorder, index: Tensor) -> Tensor:
    return index if index.device == r.place else r.to_device(index, r.place)


def coo(r: Recorder, indices: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """A sparse tensor of `values` `[n, d]` at the rows `indices` `[1, n]`."""
    made = r.tensor(shape, values.dtype)
    out = Tensor(shape, made.dtype, made.tensor_id, 0, made.device, SPARSE, (0,) * len(shape))
    r.leaf("aten::_sparse_coo_tensor_unsafe", (indices, values, shape), out)
    r.sparse_parts[out.tensor_id] = (indices, values)
    return out


def accumulate_sparse(r: Recorder, gradient: Tensor) -> Tensor:
    """What `AccumulateGrad` keeps of a sparse gradient: a new tensor of the same parts."""
    indices, values = r.sparse_parts[gradient.tensor_id]
    for name in ("_indices", "_values", "_indices", "_values", "_values", "_indices"):
        part = indices if name == "_indices" else values
        r.leaf(f"aten::{name}", (gradient,), r.view(part, part.shape, part.strides))
    return coo(r, indices, values, gradient.shape)


def add_sparse(
    r: Recorder, weight: Tensor, gradient: Tensor, factor: float, attributes: Mapping[str, str]
) -> None:
    """`weight += factor * gradient` for a sparse `gradient`: the rows that it holds.

    On a GPU uncoalesced rows are added one by one, atomically. Source: PyTorch,
    `add_out_dense_sparse_cuda`, recalled.
    """
    r.begin("aten::add_", weight, gradient, factor)
    if not r.is_cpu:
        indices, values = r.sparse_parts[gradient.tensor_id]
        values = r.to_dtype(values, weight.dtype)
        flat = r.view(indices, indices.shape[1:], indices.strides[1:])
        r.leaf("aten::index_add_", (weight, 0, flat, values, factor), weight, about=attributes)
    r.end(weight, about=attributes)


SUM = 0
NO_PADDING = -1


def even_bags(r: Recorder, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices and offsets of `indices` `[bags, pooling]`, as `nn.EmbeddingBag` makes them."""
    bags, pooling = indices.shape
    offsets = r.made("aten::arange", (0, bags * pooling, pooling), (bags,), "int64")
    return r.reshape(indices, (-1,)), offsets


Saved = tuple[Tensor, ...]
"""Indices, offsets, the bag of each index (a CPU makes it in backward), and sizes of bags."""


def embedding_bag(
    r: Recorder, weight: Tensor, flat: Tensor, offsets: Tensor, attributes: dict[str, str]
) -> Tensor:
    """Sums of the rows `flat` of `weight` `[rows, dim]`, one sum from each of the `offsets` on."""
    name = "aten::_embedding_bag" if r.tape is not None else "aten::_embedding_bag_forward_only"
    given = (weight, flat, offsets, False, SUM, True, None, False)
    out = r.tensor((offsets.shape[0], weight.shape[1]), weight.dtype)
    bag_of = r.tensor((0,) if r.is_cpu else flat.shape, "int64")
    sizes = r.tensor(offsets.shape, "int64")
    made = (out, bag_of, sizes)
    r.begin("aten::embedding_bag", *given, None)
    r.leaf(name, (*given, NO_PADDING), *made, about=attributes)
    r.end(*made, about=attributes)

    def backward(gradient: Tensor) -> list[Tensor]:
        saved = (flat, offsets, bag_of, sizes)
        return [embedding_bag_backward(r, gradient, weight, saved, attributes)]

    return r.track("EmbeddingBagBackward0", (weight,), out, backward)


def embedding_bag_backward(
    r: Recorder, gradient: Tensor, weight: Tensor, saved: Saved, attributes: dict[str, str]
) -> Tensor:
    """The sparse gradient of `weight`: a row for each lookup, repeats not summed."""
    flat, _, bag_of, *_ = saved
    rows, dim = weight.shape
    lookups = (flat.shape[0], dim)
    r.begin("aten::_embedding_bag_backward", gradient, *saved, None, rows)
    values = r.made("aten::index_select", (gradient, 0, bag_of), lookups, gradient.dtype)
    indices = r.to_dtype(r.view(flat, (1, flat.shape[0]), (flat.shape[0], 1)), "int64")
    out = coo(r, indices, values, weight.shape)
    r.end(out, about=attributes)
    return out


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
        return replace(self, attributes={**self.attributes, **about})


def batched(
    r: Recorder, about: Lookups, *, dtype: str, optimizer: str, is_modern: bool = True
) -> Batched:
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


def brought_keys(r: Recorder, lookups: int, bags: int) -> tuple[Tensor, Tensor]:
    """Keys and offsets that are on the device when the step begins."""
    return r.tensor((lookups,), "int32"), r.tensor((bags + 1,), "int32")


def look_up(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, bags: int, output: str = "fp32"
) -> Tensor:
    """Pooled rows of all tables, side by side: `[bags, total dim]` of dtype `output`."""
    about = tables.attributes
    if about["weights_dtype"] in QUANTISED:
        return _look_up_quantised(r, tables, indices, offsets, bags, output)
    flat, starts = indices, offsets
    if not r.is_bare:
        flat, starts = r.to_dtype(indices, "int64"), r.to_dtype(offsets, "int64")
        warning = r.tensor((1,), "int64")
        r.begin("fbgemm::bounds_check_indices", tables.offsets, flat, starts, WARN, warning)
        r.zero(warning)
        r.end(about=about)
    version = "_pt2" if tables.is_modern else ""
    name = f"fbgemm::split_embedding_codegen_lookup_{tables.optimizer}_function{version}"
    rows = int(tables.weights.shape[0] // tables.widest)
    sizes = (tables.total_dim, tables.widest, tables.hash_sizes, rows.bit_length())
    given = (tables.weights, tables.offsets, tables.dims, *sizes, flat, starts, SUM)
    kept = {}  # of the lookup alone: gradients may be as large as the tables
    if r.tape is not None:
        kept[STATES_BYTES] = str(sum(each.elements * item_bytes("fp32") for each in tables.states))
    out = r.made(name, given, (bags, tables.total_dim), output, about={**about, **kept})

    def backward(gradient: Tensor) -> Gradients:
        if tables.is_modern:
            update(r, tables, flat, starts, gradient)
        else:
            # that of 2022 sorts indices, sums gradients per row and updates rows by itself
            for _ in range(5):
                r.made("aten::empty_like", (flat,), flat.shape)
            for shape in (flat.shape, (1,), (), (1,)):
                r.zero(r.tensor(shape, "int32"))
        return [None]

    node = f"torch::autograd::CppNode<SplitLookupFunction_{tables.optimizer}_Op{version}>"
    return r.track(node, (tables.weights,), out, backward, about)


def look_up_dense(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, bags: int
) -> Tensor:
    """The same, of tables whose gradients are as large as they are: parameters among others."""
    keys = r.to_dtype(indices, "int64"), r.to_dtype(offsets, "int64")
    bits = int(tables.weights.shape[0] // tables.widest).bit_length()
    sizes = (tables.total_dim, tables.widest, tables.hash_sizes, bits)
    given = (tables.weights, tables.offsets, tables.dims, *sizes, *keys, SUM)
    about = tables.attributes
    out = r.made(DENSE_LOOKUP, given, (bags, tables.total_dim), about=about)

    def backward(gradient: Tensor) -> Gradients:
        made = r.like(tables.weights)
        r.leaf(DENSE_BACKWARD, (gradient, *given), made, about=about)
        return [made]

    return r.track("CppNode<SplitLookupFunction_Dense_Op>", (tables.weights,), out, backward)


def _look_up_quantised(
    r: Recorder, tables: Batched, indices: Tensor, offsets: Tensor, bags: int, output: str
) -> Tensor:
    """The operator for rows that are unpacked as they are added up; its indices are int32."""
    flat, starts = (r.to_dtype(each, "int32") for each in (indices, offsets))
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
