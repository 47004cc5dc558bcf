"""A step's recorder with PyTorch's operators on tensors: those that make, fill, copy and join them,
view them anew, send them to the device, or to other ranks by collectives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfmodel.ops.graph import Argument, Tensor
from perfmodel.ops.spec import item_bytes
from perfmodel.workload.eager.calls import CallRecorder, Shape, contiguous, is_contiguous

GROUP = "0"
DENSE = "dense"
"""The process group of layers where tables have copies too."""


CALLS = {
    "all_to_all": "c10d::alltoall_base_",
    "all_reduce": "c10d::allreduce_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_gather": "c10d::_allgather_base_",
}


class Recorder(CallRecorder):
    """Each operator writes its op and those that it calls, and returns the tensor that it makes."""

    def new_zeros(self, like: Tensor, shape: Shape, dtype: str) -> Tensor:
        self.begin("aten::new_zeros", like, shape, dtype)
        out = self.zero(self.tensor(shape, dtype))
        self.end(out)
        return out

    def empty_like(self, x: Tensor) -> Tensor:
        return self.made("aten::empty_like", (x,), x.shape, x.dtype)

    def zero(self, x: Tensor) -> Tensor:
        self.leaf("aten::zero_", (x,), x)
        return x

    def copy(self, to: Tensor, source: Tensor, *, non_blocking: bool = False) -> None:
        """Elements of `source` into `to`, converted where their dtypes differ."""
        self.leaf("aten::copy_", (to, source, non_blocking), to)

    def clone(self, x: Tensor) -> Tensor:
        self.begin("aten::clone", x)
        out = self.like(x)
        self.copy(out, x)
        self.end(out)
        return out

    def to_dtype(self, x: Tensor, dtype: str) -> Tensor:
        """`x` as `dtype`; itself where it is one already."""
        out = self._converted(x, dtype, x.device, (dtype, False))
        if out is x:
            return x
        return self.track("ToCopyBackward0", (x,), out, lambda g: [self.to_dtype(g, x.dtype)])

    def to_device(self, x: Tensor, place: str, *, non_blocking: bool = False) -> Tensor:
        """`x` on the device `place`; itself where it is there already."""
        return self._converted(x, x.dtype, place, (x.dtype, 0, place, None, non_blocking))

    def _converted(
        self, x: Tensor, dtype: str, place: str, arguments: tuple[Argument, ...]
    ) -> Tensor:
        self.begin("aten::to", x, *arguments)
        out = x
        if (x.dtype, x.device) != (dtype, place):
            self.begin("aten::_to_copy", x, *arguments)
            out = self.made("aten::empty_strided", (x.shape,), x.shape, dtype, place=place)
            self.copy(out, x, non_blocking=bool(arguments[-1]))
            self.end(out)
        made = () if out is x else (out,)
        self.end(*made)
        return out

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """`x` as autocast gives it to an op: no op where it is a `dtype`."""
        return x if x.dtype == dtype else self.to_dtype(x, dtype)

    def send_from_host(self, shape: Shape, dtype: str, *, pinned: bool) -> Tensor:
        """A host tensor of the batch, sent to the device; from pageable memory the host waits."""
        host = self.tensor(shape, dtype, place="cpu")
        return self.to_device(host, self.place, non_blocking=pinned)

    def _viewed(
        self, name: str, x: Tensor, arguments: tuple[Argument, ...], shape: Shape, strides: Shape
    ) -> Tensor:
        """The same elements with another shape and other strides, by the operator `name`."""
        out = self.view(x, shape, strides)
        self.leaf(f"aten::{name}", (x, *arguments), out)
        return out

    def as_strided(self, x: Tensor, shape: Shape, strides: Shape, offset: int) -> Tensor:
        """`offset` counts from the start of the storage."""
        return self._viewed("as_strided", x, (shape, strides, offset), shape, strides)

    def transpose(self, x: Tensor, first: int, second: int) -> Tensor:
        order = list(range(len(x.shape)))
        order[first], order[second] = order[second], order[first]
        shape, strides = (tuple(each[dim] for dim in order) for each in (x.shape, x.strides))
        out = self._viewed("transpose", x, (first, second), shape, strides)
        return self.track(
            "TransposeBackward0", (x,), out, lambda g: [self.transpose(g, first, second)]
        )

    def t(self, x: Tensor) -> Tensor:
        out = self._viewed("t", x, (), x.shape[::-1], x.strides[::-1])
        return self.track("TBackward0", (x,), out, lambda g: [self.t(g)])

    def aten_view(self, x: Tensor, shape: Shape, name: str = "view") -> Tensor:
        """Another shape of the same elements; one size may be -1."""
        full = _resolved(x, shape)
        return self._viewed(name, x, (shape,), full, view_strides(x, full) or contiguous(full))

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """Another shape: a view where the strides allow it, else of a contiguous copy."""
        full = _resolved(x, shape)
        self.begin("aten::reshape", x, shape)
        if view_strides(x, full) is not None:
            out = self.aten_view(x, shape)
        else:
            out = self.aten_view(self.clone(x), full, "_unsafe_view")
        self.end(out)
        return self.track("ViewBackward0", (x,), out, lambda g: [self.reshape(g, x.shape)])

    def select(self, x: Tensor, dim: int, index: int) -> Tensor:
        """One slice along `dim`, which goes."""
        shape, strides = x.shape[:dim] + x.shape[dim + 1 :], x.strides[:dim] + x.strides[dim + 1 :]
        return self._viewed("select", x, (dim, index), shape, strides)

    def narrow(self, x: Tensor, dim: int, start: int, length: int) -> Tensor:
        """`length` elements of `dim` from `start`."""
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        return self._viewed("narrow", x, (dim, start, length), shape, x.strides)

    def unsqueeze(self, x: Tensor, dim: int) -> Tensor:
        """A dim of size 1 before `dim`."""
        stride = x.shape[dim] * x.strides[dim] if dim < len(x.shape) else 1
        shape = (*x.shape[:dim], 1, *x.shape[dim:])
        strides = (*x.strides[:dim], stride, *x.strides[dim:])
        out = self._viewed("unsqueeze", x, (dim,), shape, strides)
        return self.track("UnsqueezeBackward0", (x,), out, lambda g: [self.squeeze(g, dim)])

    def squeeze(self, x: Tensor, dim: int) -> Tensor:
        """Without `dim`, where it is of size 1."""
        gone = dim % len(x.shape)
        behind = gone + (x.shape[gone] == 1)
        shape, strides = (each[:gone] + each[behind:] for each in (x.shape, x.strides))
        out = self._viewed("squeeze", x, (dim,), shape, strides)
        return self.track("SqueezeBackward1", (x,), out, lambda g: [self.unsqueeze(g, gone)])

    def detach(self, x: Tensor) -> Tensor:
        """The same tensor, out of autograd's sight."""
        return self._viewed("detach", x, (), x.shape, x.strides)

    def cat(self, tensors: Sequence[Tensor], dim: int, *, tracked: bool = True) -> Tensor:
        """One after the other along `dim`; of several dtypes in the widest, as autocast has it."""
        widest = max((x.dtype for x in tensors), key=item_bytes)
        joined, first = tuple(self.cast(x, widest) for x in tensors), tensors[0]
        total = sum(x.shape[dim] for x in joined)
        shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
        out = self.made("aten::cat", (joined, dim), shape, widest)
        wanted = [tracked and self.needs_gradient(x) for x in joined]

        def backward(gradient: Tensor) -> list[Tensor | None]:
            parts, start = list[Tensor | None](), 0
            for x, wants in zip(joined, wanted, strict=True):
                parts.append(self.narrow(gradient, dim, start, x.shape[dim]) if wants else None)
                start += x.shape[dim]
            return parts

        return self.track("CatBackward0", joined, out, backward) if tracked else out

    def stack(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        joined, shape = tuple(tensors), tensors[0].shape
        self.begin("aten::stack", joined, dim)
        flat = self.cat(joined, dim, tracked=False)
        out = self.aten_view(flat, (*shape[:dim], len(joined), *shape[dim:]))
        self.end(out)

        def backward(gradient: Tensor) -> list[Tensor]:
            return [self.select(gradient, dim, number) for number in range(len(joined))]

        return self.track("StackBackward0", joined, out, backward)

    def linked_collective(
        self,
        kind: str,
        sent: Tensor,
        received: Tensor,
        ranks: int,
        group: str = GROUP,
        **about: str,
    ) -> None:
        """`kind` (of `CALLS`) of `sent` into `received` among `ranks`, beside what follows.

        Collectives of one group run one after the other, on its stream. `about`: more attributes.
        Source: github.com/meta-pytorch/torchrec, pull request 4708.
        """
        about |= {
            "collective": kind,
            "process_group": group,
            "group_size": str(ranks),
            "dtype": sent.dtype,
            "in_elements": str(sent.elements),
            "out_elements": str(received.elements),
        }
        if group != GROUP:
            about["stream"] = f"comm {group}"
        self.begin(CALLS[kind], received, sent)
        if not self.is_cpu:  # what NCCL records below a call; Gloo's tasks are no ops
            self.leaf("record_param_comms", (sent, received), received, about=about)
        self.end(received, about=about)

    def all_to_all_call(
        self,
        sent: Tensor,
        received: Tensor,
        sent_sizes: Sequence[int],
        sizes: Sequence[int],
        *,
        nodes: int | None = None,
        group: str = GROUP,
    ) -> None:
        """`sent` in pieces of `sent_sizes` elements to the ranks; theirs, of `sizes`: `received`.

        `nodes`: over so many the ranks are spread, where they do not fill them one by one.
        """
        about = {} if nodes is None else {"nodes": str(nodes)}
        for name, split in (("in_split", sent_sizes), ("out_split", sizes)):
            about[name] = ",".join(map(str, split))
        self.linked_collective("all_to_all", sent, received, len(sizes), group, **about)

    def even_all_to_all(
        self, sent: Tensor, received: Tensor, ranks: int, *, nodes: int | None = None
    ) -> None:
        """From each of `ranks` its share of `received`, to each one of `sent`."""
        own, theirs = (shares(x.elements, ranks) for x in (sent, received))
        self.all_to_all_call(sent, received, own, theirs, nodes=nodes)

    def all_to_all(
        self, sent: Tensor, received: Tensor, sent_sizes: Sequence[int], sizes: Sequence[int]
    ) -> Tensor:
        """`sent` `[n]` in pieces to the ranks, theirs into `received` `[m]`; differentiable."""
        self.begin("_AlltoAllSingle", received, sent)
        self.all_to_all_call(sent, received, sent_sizes, sizes)
        out = self.aten_view(received, received.shape, "view_as")
        self.end()

        def backward(gradient: Tensor) -> list[Tensor]:
            shape = (sum(sent_sizes),)
            returned = self.made("aten::empty", (shape,), shape, gradient.dtype)
            return [self.all_to_all(gradient, returned, sizes, sent_sizes)]

        return self.track("_AlltoAllSingleBackward", (sent,), out, backward)

    def all_reduce(
        self,
        bucket: Tensor,
        ranks: int,
        *,
        in_network: bool = False,
        nodes: int | None = None,
        group: str = GROUP,
    ) -> None:
        """The sum over all ranks, into `bucket`. `in_network`: switches of the network may add up;
        `nodes` as in `all_to_all_call`."""
        about = {"in_network": "1"} if in_network else {}
        about |= {} if nodes is None else {"nodes": str(nodes)}
        self.linked_collective("all_reduce", bucket, bucket, ranks, group, **about)


def view_strides(x: Tensor, shape: Shape) -> Shape | None:
    """Strides of `x`, or of rows of a part, seen as `shape`; None where that takes a copy."""
    usual = contiguous(shape)
    if is_contiguous(x):
        return usual
    are_rows = x.shape[:1] == shape[:1] and x.strides[1:] == contiguous(x.shape)[1:]
    return (x.strides[0], *usual[1:]) if are_rows else None


def _resolved(x: Tensor, shape: Shape) -> Shape:
    if -1 not in shape:
        return shape
    rest = -prod(shape)
    return tuple(x.elements // rest if size == -1 else size for size in shape)


def shares(count: int, ranks: int) -> list[int]:
    """`count` among `ranks` as evenly as can be."""
    less, more = divmod(count, ranks)
    return [less + 1] * more + [less] * (ranks - more)
