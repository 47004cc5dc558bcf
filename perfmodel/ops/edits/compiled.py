"""A program as `torch.compile` runs it: what TorchInductor makes one kernel of.

Its rules, from its documentation and scheduler: pointwise ops join the loops of what they read or
read beside; a reduction joins the ops that make its input, and where its rows are short what
follows over the same elements joins it; normalisations are a reduction and a pointwise op, of
settled statistics the latter alone; the bias of a convolution is a pointwise op behind it.
Products, convolutions and all that is not named here stay calls of libraries, and no kernel reaches
across them. Views and allocations cost nothing. Images lie channels last between convolutions in
two dimensions, unless most of their work is in groups (`decide_layout_opt`, recalled).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod

from perfmodel.ops.graph import (
    BACKWARD,
    HOST_US,
    NO_OP,
    TRITON,
    Op,
    OpGraph,
    Tensor,
    argument,
    integers,
    tensors_in,
)
from perfmodel.ops.operators import STREAM, operator_of


def _aten(names: str, *endings: str) -> set[str]:
    return {f"aten::{name}{ending}" for name in names.split() for ending in endings or ("",)}


POINTWISE = _aten(
    "copy clone _to_copy cat stack repeat constant_pad_nd embedding masked_fill fill zero full "
    "full_like zeros zeros_like ones ones_like arange scalar_tensor",
    *("", "_"),
)
"""Beside elementwise operators."""
ATEN_KERNELS = _aten("pixel_shuffle upsample_bilinear2d_backward")
"""Elementwise, but calls of libraries to Inductor."""
REDUCTIONS = _aten(
    "sum mean prod amax amin max min argmax argmin logsumexp norm linalg_vector_norm var std "
    "var_mean std_mean any all"
)
WINDOWS = _aten("max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d")
"""Pointwise over their outputs, where a window is small."""
NORMALISATIONS = _aten(
    "_softmax _log_softmax native_layer_norm _fused_rms_norm native_group_norm cudnn_batch_norm "
    "native_batch_norm _native_batch_norm_legit"
)
CONVOLUTION, _BIAS, _GROUPS, _IMAGE = "aten::convolution", 2, 8, 4
_TRAINING = 5
"""The argument of a batch normalisation that says whether it takes statistics."""
MAX_WINDOW = 25
"""Elements of a window that Inductor unrolls; larger ones are calls of ATen."""
MAX_ROW = 16384
"""Elements of a row that a kernel goes through once more without reading it from memory again."""
GROUPED, USUAL = 1.358, 0.823
"""What channels last takes over channels first, as Inductor weighs FLOP of convolutions."""
INPUT_US = 6.0
"""What guards and wrappers take for each tensor that a call is given. KernelBench, default mode:
passes with more than 40 of them are nearest at about 6 in both halves of the problems."""
CALL, CALL_US = "torch::compiled_call", 70.0
"""What the host does before the first kernel of a compiled module (guards of TorchDynamo, the
wrappers of AOTAutograd and of Inductor), and how long: the geometric mean over eight GPUs of 31
measured passes whose kernels take less than 15 us; 33 to 114 by GPU, 65 to 78 with one left out."""
_MAX_NAMES = 10


def _row(op: Op) -> int:
    """How many elements each mean of a normalisation is taken of; of batches all, as of no row: its
    blocks meet in memory."""
    values, made, sizes = op.tensors[0], [*tensors_in(op.outputs)], integers(op, 1)
    if "softmax" in op.name and sizes:
        return values.shape[sizes[0]] if values.shape else 1
    if len(made) > 1 and "batch_norm" not in op.name:
        return values.elements // max(made[1].elements, 1)
    return prod(sizes) if sizes else values.elements


@dataclass(eq=False)
class _Part:
    """What of an op is one loop."""

    op: Op
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    elements: int
    """What it goes over."""
    after: frozenset[int] = frozenset()
    """Sizes of loops that may follow it in its kernel."""
    is_fused: bool = True
    """Whether Inductor makes its kernel."""
    joins: bool = True
    """Whether it may go into the kernel of what it reads."""
    reduces: bool = False


@dataclass(eq=False)
class _Kernel:
    """Parts that are one kernel, what they wait for, and where the last one stands."""

    parts: list[int]
    before: int = 0
    """Kernels that come before, as bits."""
    sizes: frozenset[int] = frozenset()
    is_pointwise: bool = True


@dataclass
class _Compiler:
    """Kernels, made part after part."""

    parts: list[_Part] = field(default_factory=list)
    kernels: dict[int, _Kernel] = field(default_factory=dict)
    of_part: list[int] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    """Per storage, the part that wrote it last."""
    last_reader: dict[int, int] = field(default_factory=dict)
    sources: list[dict[int, int]] = field(default_factory=list)
    """Per part, the storages that it reads of others, and their parts."""

    def add(self, part: _Part) -> None:
        storages = dict.fromkeys(t.storage_id for t in part.reads if t.storage_id >= 0)
        made = {s: self.written[s] for s in storages if s in self.written}
        at = len(self.parts)
        self.parts.append(part)
        self.sources.append(made)
        producers = dict.fromkeys(self.of_part[p] for p in made.values())
        beside = (self.of_part[self.last_reader[s]] for s in storages if s in self.last_reader)
        sizes = part.after or frozenset((part.elements,))
        self.kernels[at] = new = _Kernel([at], 0, sizes, not part.reduces and part.is_fused)
        self.of_part.append(at)
        for producer in producers:
            new.before |= 1 << producer | self.kernels[producer].before
        if part.is_fused:
            joined = producers if part.joins else ()
            for other in dict.fromkeys((*joined, *beside)):
                if other in self.kernels and self._fits(other, part, other in producers):
                    self._merge(other, self.of_part[at])
        for storage in storages:
            self.last_reader[storage] = at
        for tensor in part.writes:
            if tensor.storage_id >= 0:
                self.written[tensor.storage_id] = at

    def _fits(self, other: int, part: _Part, is_read: bool) -> bool:
        ends = other, self.of_part[-1]
        kernel, mine = (self.kernels[end] for end in ends)
        first = self.parts[kernel.parts[0]]
        if kernel is mine or not first.is_fused or first.op.phase != part.op.phase:
            return False
        is_inlined = is_read and kernel.is_pointwise and max(kernel.sizes) < part.elements
        if part.elements not in kernel.sizes and not is_inlined:
            return False
        before = kernel.before | mine.before
        return not any(  # a third kernel waits for one of the two and is waited for by the other
            before >> each & 1 and kernels.before & (1 << ends[0] | 1 << ends[1])
            for each, kernels in self.kernels.items()
            if each not in ends
        )

    def _merge(self, into: int, gone: int) -> None:
        """Both are one kernel; what came after either comes after both."""
        kept, left = self.kernels[into], self.kernels.pop(gone)
        last = self.parts[left.parts[-1]]
        for at in left.parts:
            self.of_part[at] = into
        kept.parts = sorted((*kept.parts, *left.parts))
        kept.before = (kept.before | left.before) & ~(1 << into) & ~(1 << gone)
        kept.sizes = left.sizes | (frozenset() if kept.is_pointwise or last.reduces else kept.sizes)
        kept.is_pointwise &= left.is_pointwise
        for other in self.kernels.values():
            if other.before >> gone & 1:
                other.before = other.before & ~(1 << gone) | 1 << into
            if other.before >> into & 1:
                other.before |= kept.before

    def ops(self, given: tuple[Tensor, ...]) -> Iterator[Op]:
        """One op per kernel, behind the begin of a call that is given these tensors."""
        yield Op(CALL, given, attributes={HOST_US: str(CALL_US + INPUT_US * len(given))})
        readers: dict[tuple[int, int], set[int]] = {}
        for at, made in enumerate(self.sources):
            for storage, producer in made.items():
                readers.setdefault((producer, storage), set()).add(self.of_part[at])
        left, done = sorted(self.kernels.items(), key=lambda item: item[1].parts[-1]), 0
        while left:  # each behind those that it waits for, else by its last part
            place = next(i for i, (_, each) in enumerate(left) if not each.before & ~done)
            at, kernel = left.pop(place)
            done |= 1 << at
            if not self.parts[kernel.parts[0]].is_fused:
                yield self.parts[kernel.parts[0]].op
                continue
            reads: dict[tuple[int, tuple[int, ...]], Tensor] = {}
            writes: dict[tuple[int, tuple[int, ...]], Tensor] = {}
            for index in kernel.parts:
                part, made = self.parts[index], self.sources[index]
                for held in part.reads:
                    storage = held.storage_id
                    if storage not in made or self.of_part[made[storage]] != at:
                        reads.setdefault(_key(held), held)
                for place, tensor in enumerate(part.writes):
                    read_by = readers.get((index, tensor.storage_id), set())
                    if read_by - {at} or not (read_by or place):
                        writes[_key(tensor)] = tensor
            parts = [self.parts[i] for i in kernel.parts]
            written = tuple(writes.values()) or parts[-1].writes[:1]
            names = sorted({part.op.name.rpartition("::")[2] for part in parts})[:_MAX_NAMES]
            kind = "red" if any(p.reduces for p in parts) else "poi"
            name, last = f"{TRITON}{kind}_fused_{'_'.join(names)}", parts[-1].op
            made_of = tuple(reads.values()), written, NO_OP, last.thread, last.phase, last.step
            yield Op(name, *made_of)


def _key(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return (tensor.storage_id if tensor.storage_id >= 0 else -tensor.tensor_id, tensor.shape)


def compiled(graph: OpGraph) -> OpGraph:
    """`graph` with the kernels that Inductor would make of its ops; each step is one call.

    Ops are taken as they were called, callers of others by what they call.
    """
    callers = {op.parent for op in graph.ops}
    called = [op for index, op in enumerate(graph.ops) if index not in callers]
    compiler = _Compiler()
    for op in _channels_last(called):
        for part in _parts(op):
            compiler.add(part)
    made, given = {NO_OP}, dict[int, Tensor]()  # by storage: parameters, buffers and arguments
    for op in called:
        given |= {t.storage_id: t for t in op.tensors if t.storage_id not in made}
        made |= {t.storage_id for t in tensors_in(op.outputs)}
    ops = tuple(compiler.ops(tuple(given.values())))
    before = sum(part.is_fused for part in compiler.parts)
    after = sum(op.name.startswith(TRITON) for op in ops)
    note = f"compiled: {before} loops in {after} kernels of Inductor"
    return replace(graph, ops=ops, held={}, notes=(*graph.notes, note))


def _takes_channels_last(ops: Sequence[Op]) -> bool:
    """Whether Inductor lays images out channels last; in training it weighs no FLOP: a convolution
    of groups, or to far fewer channels, is against it."""
    is_training, whole, weighed = any(op.phase == BACKWARD for op in ops), 0.0, 0.0
    for op in ops:
        if op.name == CONVOLUTION and op.outputs and len(op.tensors) > 1:
            outs, ins, *window = op.tensors[1].shape
            is_grouped = op.inputs[_GROUPS] != 1 and ins > 1
            if is_training and (is_grouped or (2 * outs <= ins and window[0] > 1)):
                return False
            work = float(next(tensors_in(op.outputs)).elements * ins * prod(window))
            whole, weighed = whole + work, weighed + work * (GROUPED if is_grouped else USUAL)
    return weighed <= whole


def _channels_last(ops: Sequence[Op]) -> Iterator[Op]:
    """`ops`, whose convolutions read images as Inductor lays them out; what the call is given, and
    what it returns, is copied from and to its own layout."""
    is_taken = _takes_channels_last(ops)
    read = {tensor.storage_id for op in ops for tensor in op.tensors}
    storages = count(max(read, default=0) + len(ops))
    made_here = set[int]()
    for op in ops:
        made_here |= {tensor.storage_id for tensor in tensors_in(op.outputs)}
        image = op.tensors[0] if op.name == CONVOLUTION and op.outputs else None
        if not is_taken or image is None or len(image.shape) != _IMAGE:
            yield op
            continue
        _, channels, height, width = image.shape
        strides = (channels * height * width, 1, channels * width, channels)
        laid_out = replace(image, strides=strides)
        if image.storage_id not in made_here:
            laid_out = replace(laid_out, storage_id=next(storages))
            yield replace(op, name="aten::clone", inputs=(image,), outputs=(laid_out,))
        made, inputs = next(tensors_in(op.outputs)), (laid_out, *op.inputs[1:])
        if made.storage_id in read:
            yield replace(op, inputs=inputs)
            continue
        inner = replace(made, storage_id=next(storages))
        yield replace(op, inputs=inputs, outputs=(inner,))
        yield replace(op, name="aten::clone", inputs=(inner,), outputs=(made,))


def _parts(op: Op) -> Iterable[_Part]:
    """What Inductor sees in an op; nothing where it only looks at or sets aside memory."""
    reads, writes = op.tensors, tuple(tensors_in(op.outputs))
    is_settled = "batch_norm" in op.name and argument(op, _TRAINING) is False
    if op.name in NORMALISATIONS and reads and writes and not is_settled:
        total, row = reads[0].elements, _row(op)
        if row <= MAX_ROW:  # its means and its elements in one kernel
            sizes = frozenset((total, max(total // max(row, 1), 1)))
            return (_Part(op, reads, writes, total, sizes, reduces=True),)
        channels = max((t.elements for t in reads[1:]), default=1)
        means, after = Tensor((channels,), "fp32", device=reads[0].device), frozenset((channels,))
        first = _Part(op, reads[:1], (means,), total, after, reduces=True)
        return (first, _Part(op, (*reads, means), writes, total))
    if op.name in REDUCTIONS and len(reads) == 1 and writes:
        total, rows = reads[0].elements, max(writes[0].elements, 1)
        is_short = total // rows <= MAX_ROW
        after = frozenset((rows, total) if is_short else (rows,))
        return (_Part(op, reads, writes, total, after, reduces=True),)
    small = op.name in WINDOWS and prod(integers(op, 1) or (MAX_WINDOW + 1,)) <= MAX_WINDOW
    record = operator_of(op.name) if op.name.startswith("aten::") else None
    is_streamed = record is not None and (record.launches or "").startswith(STREAM)
    is_pointwise = op.name in POINTWISE or (is_streamed and op.name not in ATEN_KERNELS)
    if writes and (is_pointwise or is_settled or op.name in REDUCTIONS or small):
        elements = max(tensor.elements for tensor in writes)
        if op.name.endswith("::copy_"):
            reads = reads[1:]
        if op.name == "aten::embedding" and reads[0].elements > elements:  # its rows alone
            reads = (replace(reads[0], shape=writes[0].shape, strides=()), *reads[1:])
        return (_Part(op, reads, writes, elements, joins=not small),)
    given = {tensor.storage_id for tensor in reads} - {-1}
    is_view = not op.name.endswith("_") and all(t.storage_id in given for t in writes)
    if "::empty" in op.name or "::new_empty" in op.name or (writes and is_view):
        return ()
    bias = argument(op, _BIAS) if op.name == CONVOLUTION else None
    behind: tuple[_Part, ...] = ()
    if isinstance(bias, Tensor):
        op = replace(op, inputs=(*op.inputs[:_BIAS], None, *op.inputs[_BIAS + 1 :]))
        added = (*writes, bias), writes, writes[0].elements
        behind = (_Part(replace(op, name="aten::add"), *added),)
    return (_Part(replace(op, parent=NO_OP), op.tensors, writes, 0, is_fused=False), *behind)
