"""TorchRec's exchange of pooled rows: a request, a wait before use, codecs of the wire.

Pooled rows go from the ranks with tables to those with samples. Whole tables and columns: an
all-to-all. Rows on all ranks: partial sums by a reduce-scatter, whose backward is an all-gather.
Rows on linked ranks: a reduce-scatter among these, then an all-to-all among the ranks of one place
in each group. Source: TorchRec's sharding types (TW/CW, RW, TWRW).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.ops.graph import Tensor
from perfmodel.workload.adapter_caches import adapter_use, is_across_network
from perfmodel.workload.collectives import GROUP, all_to_all_call, linked_collective, shares
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import cast, cat, copy, to_dtype, view
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


def exchanged_rows(
    r: Recorder, run: Run, pooled: Tensor, dims: Sequence[int], group: str = GROUP
) -> Tensor:
    """`[samples of all ranks, own dim]` -> `[own samples, dims of all]`, of all ranks, or in a
    `group` of its own among those of one place in each group of linked ranks."""
    ranks, wire = len(dims), run.workload.implementation.exchange_precision
    rank, nodes = (run.rank, None) if group == GROUP else (run.rank // run.linked, run.groups)
    sizes = [run.batch * dim for dim in dims]
    on_wire = [wire_elements(size, wire) for size in sizes]
    samples, own_dim = pooled.shape
    back_sizes = [wire_elements(count * own_dim, wire) for count in shares(samples, ranks)]
    own, theirs = back_sizes, on_wire
    r.begin("All2All_Pooled_Req", pooled)
    flat = encode_wire(r, view(r, pooled, (pooled.elements,)), wire)
    sent, received = r.like(flat), r.tensor((sum(on_wire),), wire_dtype(wire))
    copy(r, sent, flat)
    use = adapter_use(run) if group == GROUP else None
    arrived = received
    if use is not None:  # what others have from a cache is not sent
        share = use.answered_fracs(run)
        add_remote_rows(r, run, received)
        far = [is_across_network(run, each) for each in range(ranks)]
        own = [round(own[at] * share[rank]) if far[at] else own[at] for at in range(ranks)]
        theirs = [round(on_wire[at] * share[at]) if far[at] else on_wire[at] for at in range(ranks)]
        sent, arrived = r.view(sent, (sum(own),), (1,)), r.view(received, (sum(theirs),), (1,))
    all_to_all_call(r, sent, arrived, own, theirs, nodes=nodes, group=group)
    r.end()
    r.begin("All2All_Pooled_Wait", r.tensor((1,)))
    pieces = _split(r, decode_wire(r, received, sum(sizes), wire), sizes)
    parts = [view(r, each, (run.batch, dim)) for each, dim in zip(pieces, dims, strict=True) if dim]
    out = cast(r, cat(r, parts, 1, tracked=False), "fp32")
    r.end(out)

    def send(gradient: Tensor) -> Tensor:
        """The gradients of each rank's tables start on their way back to it."""
        parts = [part for part in _split(r, gradient, dims, 1) if part.shape[1]]
        back = cat(r, [r.view(part, (part.elements,), (1,)) for part in parts], 0)
        back = encode_wire(r, back, wire)
        returned = r.tensor((sum(back_sizes),), back.dtype)
        all_to_all_call(r, back, returned, on_wire, back_sizes, nodes=nodes, group=group)
        return returned

    return _requested(r, "All2All_Pooled", pooled, out, ranks, wire, send)


def _requested(
    r: Recorder,
    name: str,
    pooled: Tensor,
    out: Tensor,
    ranks: int,
    wire: str,
    send: Callable[[Tensor], Tensor],
) -> Tensor:
    """`out`, made of `pooled` by a request and a wait for it: the wait's node sends gradients, the
    request's waits for what comes back, and divides by the number of ranks."""
    returned: list[Tensor] = []

    def started(gradient: Tensor) -> list[Tensor]:
        returned.append(send(gradient))
        return [r.tensor((1,))]

    def arrived(_: Tensor) -> list[Tensor]:
        came = decode_wire(r, returned.pop(), pooled.elements, wire)
        of_pooled = cast(r, came, pooled.dtype)
        if of_pooled.shape != pooled.shape:
            of_pooled = view(r, of_pooled, pooled.shape)
        r.leaf("aten::div_", (of_pooled, ranks), of_pooled)
        return [of_pooled]

    token = r.track(f"{name}_ReqBackward", (pooled,), r.tensor((1,)), arrived)
    return r.track(f"{name}_WaitBackward", (token,), out, started)


def summed_rows(r: Recorder, run: Run, pooled: Tensor, ranks: int, group: str = GROUP) -> Tensor:
    """`[samples, dim]` on each rank -> the sums of the own part of the samples; backward is an
    all-gather."""
    wire = run.workload.implementation.exchange_precision
    r.begin("ReduceScatter_Req", pooled)
    sent = cast(r, pooled, wire)
    out = r.tensor((run.batch * run.ranks // ranks, pooled.shape[1]), wire)
    linked_collective(r, "reduce_scatter", sent, out, ranks, group)
    r.end()
    r.begin("ReduceScatter_Wait", r.tensor((1,)))
    out = to_dtype(r, out, "fp32") if out.dtype != "fp32" else view(r, out, out.shape)
    r.end(out)

    def send(gradient: Tensor) -> Tensor:
        """The gradients of all ranks' samples start on their way to each."""
        sent = cast(r, gradient, wire)
        returned = r.tensor(pooled.shape, wire)
        linked_collective(r, "all_gather", sent, returned, ranks, group)
        return returned

    return _requested(r, "ReduceScatter", pooled, out, ranks, "fp32", send)


def _split(r: Recorder, x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
    parts = [r.view(x, shape, x.strides) for shape in shapes]
    r.leaf("aten::split_with_sizes", (x, tuple(sizes), dim), tuple(parts))
    return parts


def features_of(r: Recorder, pooled: Tensor, sizes: Sequence[int]) -> Tensor:
    """A keyed tensor taken apart by feature and put together in the model's order."""
    parts = _split(r, pooled, sizes, 1)
    r.track("SplitWithSizesBackward0", (pooled,), tuple(parts), lambda g: [cat(r, g, 1)])
    return cat(r, parts, 1)


def sum_parts(r: Recorder, x: Tensor, tables: int) -> Tensor:
    """Of x `[batch, parts of tables, dim]` the sums per table, `[batch, tables, dim]`."""
    out = r.tensor((x.shape[0], tables, x.shape[2]), x.dtype)
    table_of = r.tensor((x.shape[1],), "int64")
    r.leaf("aten::index_add", (out, 1, table_of, x, 1), out)

    name = "aten::index_select"
    return r.track("IndexAddBackward0", (x,), out, lambda g: [r.made_like(x, name, g, 1, table_of)])
