"""TorchRec's exchange of pooled rows: a request in the forward pass, a wait before their use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.creation import copy, to_dtype
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.pointwise import scalar_in_place
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import narrow, view
from perfmodel.workload.parts.adapter import answered_fracs, is_apart
from perfmodel.workload.parts.adapter_ops import added_remotely
from perfmodel.workload.parts.exchange import GROUP, all_to_all_call
from perfmodel.workload.parts.wire import carried_as, decoded, encoded, on_wire
from perfmodel.workload.run import Run


@dataclass
class Link:
    """What a request and its wait share: sizes, what came, and in backward what came back."""

    batch: int
    """Samples of each rank."""
    dims: tuple[int, ...]
    """What each rank sends of every sample."""
    rank: int
    nodes: int | None = None
    """Over so many the ranks are spread, where they do not fill them one by one."""
    group: str = GROUP
    wire: str = "fp32"
    adapters: Run | None = None
    """The step whose adapters hold rows, and answer part of it without an exchange."""
    received: Tensor | None = None
    returned: Tensor | None = None

    @property
    def ranks(self) -> int:
        return len(self.dims)

    @property
    def sizes(self) -> list[int]:
        """Elements that come from each rank."""
        return [self.batch * dim for dim in self.dims]

    @property
    def on_wire(self) -> list[int]:
        """The same as they travel."""
        return [on_wire(size, self.wire) for size in self.sizes]


def dims_of(run: Run) -> tuple[int, ...]:
    """The sum of the dims of each rank's shards."""
    tables = run.workload.tables
    return tuple(sum(shard.of(tables).dim for shard in own) for own in run.plan.shards)


def pooled_all_to_all(r: Recorder, run: Run, pooled: Tensor, wire: str) -> Tensor:
    """`[global batch, own dims]` -> `[batch, dims of all shards]`, in precision `wire`."""
    return exchanged_rows(r, pooled, Link(run.batch, dims_of(run), run.rank), wire)


def exchanged_rows(r: Recorder, pooled: Tensor, link: Link, wire: str) -> Tensor:
    """`[samples of all ranks, own dim]` -> `[own samples, dims of all]`, in precision `wire`."""
    return _wait(r, _request(r, pooled, link, wire), link)


def _request(r: Recorder, pooled: Tensor, link: Link, wire: str) -> Tensor:
    """Starts the exchange; what it returns only stands for it."""
    ranks = link.ranks
    r.begin("All2All_Pooled_Req", pooled)
    flat = view(r, pooled, (pooled.elements,))
    link.wire = wire
    flat = encoded(r, flat, wire)
    buffer = r.tensor(flat.shape, flat.dtype)
    copy(r, buffer, flat)
    link.received = r.tensor((sum(link.on_wire),), carried_as(wire))
    own = [on_wire(pooled.elements // ranks, wire)] * ranks
    _sent(r, buffer, link, own)
    r.end()
    token = r.tensor((1,))
    track(r, "All2All_Pooled_Req", (pooled,), token, link)
    return token


def _sent(r: Recorder, buffer: Tensor, link: Link, own: list[int]) -> None:
    """The exchange itself; what others have from a cache is not sent."""
    received, sizes = link.received, link.on_wire
    assert received is not None
    share = answered_fracs(link.adapters) if link.adapters is not None else ()
    if link.adapters is not None and share:
        added_remotely(r, link.adapters, received)
        apart = [is_apart(link.adapters, rank) for rank in range(link.ranks)]
        own = [
            round(size * share[link.rank]) if far else size
            for size, far in zip(own, apart, strict=True)
        ]
        sizes = [
            round(size * part) if far else size
            for size, part, far in zip(sizes, share, apart, strict=True)
        ]
        buffer = r.view(buffer, (sum(own),), (1,))
        received = r.view(received, (sum(sizes),), (1,))
    all_to_all_call(
        r, buffer, received, own, sizes, is_async=True, nodes=link.nodes, group=link.group
    )


def _wait(r: Recorder, token: Tensor, link: Link) -> Tensor:
    assert link.received is not None
    r.begin("All2All_Pooled_Wait", token)
    received = decoded(r, link.received, sum(link.sizes), link.wire)
    pieces = zip(_split(r, received, link.sizes), link.dims, strict=True)
    parts = [view(r, part, (link.batch, dim)) for part, dim in pieces if dim]
    out = cat(r, parts, 1, tracked=False)
    out = to_dtype(r, out, "fp32") if out.dtype != "fp32" else out
    r.end(out)
    track(r, "All2All_Pooled_Wait", (token,), out, link)
    return out


def _split(r: Recorder, x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    r.begin("aten::split_with_sizes", x, tuple(sizes), dim)
    parts, start = [], 0
    for size in sizes:
        parts.append(narrow(r, x, dim, start, size))
        start += size
    r.end(tuple(parts))
    return parts


def features_of(r: Recorder, pooled: Tensor, sizes: Sequence[int]) -> Tensor:
    """A keyed tensor taken apart by feature and put together in the model's order."""
    r.begin("aten::split_with_sizes", pooled, tuple(sizes), 1)
    parts, start = [], 0
    for size in sizes:
        parts.append(r.view(pooled, (pooled.shape[0], size), pooled.strides))
        start += size
    r.end(tuple(parts))
    if r.tape is not None:
        r.tape.add("aten::split_with_sizes", (pooled,), tuple(parts), (1,))
    return cat(r, parts, 1)


def add_up(r: Recorder, x: Tensor, tables: int) -> Tensor:
    """Of x `[batch, parts of tables, dim]` the sums per table, `[batch, tables, dim]`."""
    out = r.tensor((x.shape[0], tables, x.shape[2]), x.dtype)
    table_of = r.tensor((x.shape[1],), "int64")
    r.leaf("aten::index_add", (out, 1, table_of, x, 1), out)
    track(r, "aten::index_add", (x,), out, table_of)
    return out


@rule("aten::index_add", "IndexAddBackward0")
def _add_up_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    out = r.tensor(node.inputs[0].shape, node.inputs[0].dtype)
    r.leaf("aten::index_select", (gradients[0], 1, node.saved[0]), out)
    return [out]


@rule("aten::split_with_sizes", "SplitWithSizesBackward0")
def _split_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    given = [gradient for gradient in gradients if gradient is not None]
    return [cat(r, given, node.saved[0])]


@rule("All2All_Pooled_Wait", "All2All_Pooled_WaitBackward")
def _wait_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """The gradients of each rank's tables start on their way back to it."""
    (gradient,) = gradients
    assert gradient is not None
    (link,) = node.saved
    parts = [part for part in _split(r, gradient, link.dims, 1) if part.shape[1]]
    back = cat(r, [r.view(part, (part.elements,), (1,)) for part in parts], 0)
    back = encoded(r, back, link.wire)
    own = link.on_wire[link.rank]
    link.returned = r.tensor((own * link.ranks,), back.dtype)
    sizes = [own] * link.ranks
    all_to_all_call(
        r,
        back,
        link.returned,
        link.on_wire,
        sizes,
        is_async=True,
        nodes=link.nodes,
        group=link.group,
    )
    return [r.tensor((1,))]


@rule("All2All_Pooled_Req", "All2All_Pooled_ReqBackward")
def _request_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Waits for them, and divides by the number of ranks."""
    (link,) = node.saved
    pooled, out = node.inputs[0], link.returned
    out = decoded(r, out, pooled.elements, link.wire)
    out = to_dtype(r, out, pooled.dtype) if out.dtype != pooled.dtype else out
    out = view(r, out, pooled.shape)
    scalar_in_place(r, "aten::div_", out, link.ranks)
    return [out]
