"""TorchRec's exchange of pooled rows: a request, a wait before use, codecs of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.graph import Tensor
from perfmodel.workload.adapter_caches import adapter_use, is_across_network
from perfmodel.workload.collectives import GROUP, all_to_all_call
from perfmodel.workload.eager.arithmetic import scalar_in_place
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import cast, cat, copy, view
from perfmodel.workload.jagged import add_remote_rows
from perfmodel.workload.step import Run

ROWWISE = {"int8": ("Fused8Bit", 8), "fp8": ("FP8", 8)}
"""Wire type to the name of its codec, and what a row's scale takes beside its bytes: fp32 scale and
bias (int8); fp32 scale, padded (fp8). Source: FBGEMM, quantize_ops; the latter recalled."""
ROW = 128
"""Elements of a row of the payload. assumed: TorchRec's `row_dim` is the embedding's dim."""


def wire_elements(elements: int, wire: str) -> int:
    """Elements of the wire's type for so many values."""
    if wire not in ROWWISE:
        return elements
    return elements + -(-elements // ROW) * ROWWISE[wire][1]


def vector_bytes(dim: float, wire: str) -> float:
    """Of one pooled row on the wire, its scale with it."""
    scale = ROWWISE[wire][1] if wire in ROWWISE else 0
    return dim * float(item_bytes([wire_dtype(wire)])[0]) + scale


def wire_dtype(wire: str) -> str:
    """The dtype of the payload."""
    return "uint8" if wire in ROWWISE else wire


def encode_wire(r: Recorder, values: Tensor, wire: str) -> Tensor:
    """`values` `[n]` as they go out."""
    if wire not in ROWWISE:
        return cast(r, values, wire)
    name, scale = ROWWISE[wire]
    rows = -(-values.elements // ROW)
    given = r.view(values, (rows, ROW), (ROW, 1))
    out = r.made(f"fbgemm::FloatTo{name}RowwiseQuantized", (given,), (rows, ROW + scale), "uint8")
    return r.view(out, (wire_elements(values.elements, wire),), (1,))


def decode_wire(r: Recorder, payload: Tensor, elements: int, wire: str) -> Tensor:
    """What came in, as values `[elements]`; of a plain type as it is."""
    if wire not in ROWWISE:
        return payload
    name = f"fbgemm::{ROWWISE[wire][0]}RowwiseQuantizedToFloat"
    return r.made(name, (payload,), (elements,))


@dataclass
class Link:
    """An exchange of pooled rows: sizes, their type on the wire, gradients that came back."""

    batch: int
    """Samples of each rank."""
    dims: tuple[int, ...]
    """What each rank sends of every sample."""
    rank: int
    wire: str
    nodes: int | None = None
    """Over so many the ranks are spread, where they do not fill them one by one."""
    group: str = GROUP
    adapters: Run | None = None
    """The step whose adapters hold rows, and answer part of it without an exchange."""
    returned: Tensor | None = None

    @property
    def on_wire(self) -> list[int]:
        """Elements that come from each rank, as they travel."""
        return [wire_elements(self.batch * dim, self.wire) for dim in self.dims]


def exchanged_rows(r: Recorder, pooled: Tensor, link: Link) -> Tensor:
    """`[samples of all ranks, own dim]` -> `[own samples, dims of all]`."""
    ranks, wire = len(link.dims), link.wire
    r.begin("All2All_Pooled_Req", pooled)
    flat = encode_wire(r, view(r, pooled, (pooled.elements,)), wire)
    buffer = r.like(flat)
    copy(r, buffer, flat)
    received = r.tensor((sum(link.on_wire),), wire_dtype(wire))
    _send(r, buffer, received, link, [wire_elements(pooled.elements // ranks, wire)] * ranks)
    r.end()

    def of_request(_: Tensor) -> list[Tensor]:
        """Waits for what came back, and divides by the number of ranks."""
        assert link.returned is not None
        out = decode_wire(r, link.returned, pooled.elements, wire)
        out = view(r, cast(r, out, pooled.dtype), pooled.shape)
        scalar_in_place(r, "aten::div_", out, ranks)
        return [out]

    token = r.track("All2All_Pooled_ReqBackward", (pooled,), r.tensor((1,)), of_request)
    r.begin("All2All_Pooled_Wait", token)
    sizes = [link.batch * dim for dim in link.dims]
    pieces = zip(
        _split(r, decode_wire(r, received, sum(sizes), wire), sizes), link.dims, strict=True
    )
    parts = [view(r, part, (link.batch, dim)) for part, dim in pieces if dim]
    out = cast(r, cat(r, parts, 1, tracked=False), "fp32")
    r.end(out)
    return r.track("All2All_Pooled_WaitBackward", (token,), out, partial(_send_back, r, link))


def _send_back(r: Recorder, link: Link, gradient: Tensor) -> list[Tensor]:
    """The gradients of each rank's tables start on their way back to it."""
    parts = [part for part in _split(r, gradient, link.dims, 1) if part.shape[1]]
    back = cat(r, [r.view(part, (part.elements,), (1,)) for part in parts], 0)
    back = encode_wire(r, back, link.wire)
    sizes = [link.on_wire[link.rank]] * len(link.dims)
    link.returned = r.tensor((sum(sizes),), back.dtype)
    all_to_all_call(r, back, link.returned, link.on_wire, sizes, True, link.nodes, link.group)
    return [r.tensor((1,))]


def _send(r: Recorder, buffer: Tensor, received: Tensor, link: Link, own: list[int]) -> None:
    """The exchange itself; what others have from a cache is not sent."""
    sizes = link.on_wire
    use = None if link.adapters is None else adapter_use(link.adapters)
    if link.adapters is not None and use is not None:
        share = use.answered_fracs(link.adapters)
        add_remote_rows(r, link.adapters, received)
        for rank in range(len(sizes)):
            if is_across_network(link.adapters, rank):
                own[rank] = round(own[rank] * share[link.rank])
                sizes[rank] = round(sizes[rank] * share[rank])
        buffer = r.view(buffer, (sum(own),), (1,))
        received = r.view(received, (sum(sizes),), (1,))
    all_to_all_call(r, buffer, received, own, sizes, True, link.nodes, link.group)


def _split(r: Recorder, x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
    parts = [r.view(x, shape, x.strides) for shape in shapes]
    r.leaf("aten::split_with_sizes", (x, tuple(sizes), dim), tuple(parts))
    return parts


def features_of(r: Recorder, pooled: Tensor, sizes: Sequence[int]) -> Tensor:
    """A keyed tensor taken apart by feature and put together in the model's order."""
    parts = _split(r, pooled, sizes, 1)
    r.track_all("SplitWithSizesBackward0", (pooled,), tuple(parts), lambda g: [cat(r, g, 1)])
    return cat(r, parts, 1)


def sum_parts(r: Recorder, x: Tensor, tables: int) -> Tensor:
    """Of x `[batch, parts of tables, dim]` the sums per table, `[batch, tables, dim]`."""
    out = r.tensor((x.shape[0], tables, x.shape[2]), x.dtype)
    table_of = r.tensor((x.shape[1],), "int64")
    r.leaf("aten::index_add", (out, 1, table_of, x, 1), out)

    def backward(gradient: Tensor) -> list[Tensor]:
        return [r.made("aten::index_select", (gradient, 1, table_of), x.shape, x.dtype)]

    return r.track("IndexAddBackward0", (x,), out, backward)
