"""What a call was given, from the texts of execution traces and profiles.

What is known of collectives, as attributes of their op.

`collective` (`all_reduce all_to_all all_gather reduce_scatter broadcast reduce gather scatter send
recv barrier wait`), `process_group`, `group_size`, `group_ranks`, `dtype`, `in_elements`,
`out_elements`, `in_split`, `out_split` (elements or rows per peer; absent for equal parts). Lists
are numbers with commas between. A call (`c10d::alltoall_base_`) carries what its arguments tell,
the `record_param_comms` in it what the file says: where there is one, it is the collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from perfmodel.base.arrays import Ints, distinct
from perfmodel.errors import TraceError
from perfmodel.ops.graph import Argument, Arguments, Tensor, tensors_in
from perfmodel.ops.spec import dtype_of_torch
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.execution_trace_arguments import TypeTree, parse_type

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import Arguments as Recorded
    from perfmodel.trace.execution_trace_columns import ExecutionTrace


_decode = msgspec.json.decode
_UNDEFINED = "nullptr"
_NOTHING = "<None>"
_NUMBERS = {"inf", "-inf", "nan", "-nan", "Infinity", "-Infinity", "NaN"}
_LIST_OF_TENSORS = "TensorList"


class ExecutionTraceArguments:
    """Arguments of the nodes of one execution trace; each text is decoded once."""

    def __init__(self) -> None:
        self.unknown_dtypes: Counter[str] = Counter()
        self._of_node = cache(self._read)
        self._list: Callable[[bytes], list[Any]] = cache(_decode)
        self._types = cache(lambda types: [parse_type(text) for text in _decode(types)])

    def of(self, given: Recorded) -> list[Arguments]:
        return list(map(self._of_node, given.values, given.shapes, given.types, given.strides))

    def _read(self, values: bytes, shapes: bytes, types: bytes, strides: bytes) -> Arguments:
        plans, steps = self._types(types), self._list(strides)
        if len(steps) != len(plans):
            steps = [None] * len(plans)
        return tuple(map(self._argument, plans, self._list(values), self._list(shapes), steps))

    def _argument(self, plan: TypeTree, value: Any, shape: Any, strides: Any) -> Argument:
        if plan is None:
            return _plain(value)
        if not isinstance(plan, str):
            many = [None] * len(plan)
            return tuple(map(self._argument, plan, value, shape or many, strides or many))
        if plan.startswith(_UNDEFINED):
            return None
        dtype = dtype_of_torch(plan)
        if dtype is None:
            self.unknown_dtypes[plan] += 1
            dtype = plan
        tensor_id, storage_id = value[0], value[1]
        device = value[5] if len(value) > 5 else ""
        layout = "" if storage_id else "sparse"
        about = dtype, tensor_id, storage_id or -1, device, layout
        return Tensor(tuple(shape or ()), *about, tuple(strides or ()))


def _plain(value: Any) -> Argument:
    if type(value) is list:
        return tuple(map(_plain, value))
    if type(value) is str:
        return None if value == _NOTHING else float(value) if value in _NUMBERS else value
    return str(value) if type(value) is dict else value


class ProfileArguments:
    """Arguments of a profile's ops, by the indices of their four texts; each set is decoded once.

    Old profiles give no shapes for lists of tensors and no types for their members, which are taken
    to be of the floating type that most tensors have; of fp32 where none is named.
    """

    def __init__(self, rank: RankTrace, ops: Ints) -> None:
        self._rank = rank
        types = [i for i in distinct(rank.input_dtypes[ops]).tolist() if i >= 0]
        count = Counter(dtype_of_torch(word) for i in types for word in self._items(i, str))
        self._usual_dtype = max(("fp32", "fp16", "bf16", "fp64"), key=lambda dtype: count[dtype])
        self.unknown_dtypes: Counter[str] = Counter()
        columns = (rank.input_shapes, rank.input_dtypes, rank.input_values, rank.input_strides)
        self.given = list(map(cache(self._read), *(column[ops].tolist() for column in columns)))
        """Of each op, in their order."""

    def _items(self, text: int, kind: Any) -> list[Any]:
        """Those of a text by its index; -1 is a text that the file does not have."""
        try:
            items: list[Any] = _decode(self._rank.strings[text] or "[]", type=list[kind])
        except msgspec.MsgspecError as error:
            where = self._rank.where
            raise TraceError(f"{where}: Input Dims or types of an op: {error}") from None
        return items

    def _read(self, shapes: int, types: int, values: int, strides: int) -> Arguments:
        dims, words = self._items(shapes, Any), self._items(types, str)
        concrete, steps = self._items(values, str), self._items(strides, Any)
        count = len(words)
        concrete = concrete if len(concrete) == count else [""] * count
        steps = steps if len(steps) == count else [()] * count
        if len(dims) != count:
            raise TraceError(
                f"{self._rank.where}: an op has {len(dims)} Input Dims for {count} Input types"
            )
        tensor_dtype = next((d for d in map(dtype_of_torch, words) if d), self._usual_dtype)
        return tuple(
            self._argument(*about, tensor_dtype)
            for about in zip(words, dims, concrete, steps, strict=True)
        )

    def _argument(self, word: str, dims: Any, value: str, strides: Any, dtype: str) -> Argument:
        if not isinstance(dims, list):
            dims = [dims] if isinstance(dims, int) else []
        if any(isinstance(each, list) for each in dims):
            fit = isinstance(strides, list) and len(strides) == len(dims)
            steps = strides if fit else [()] * len(dims)
            return tuple(_profiled(d, dtype, s) for d, s in zip(dims, steps, strict=True))
        if word == _LIST_OF_TENSORS:
            return (_profiled(dims, dtype, strides),) if dims else ()
        known = dtype_of_torch(word)
        if known is not None:
            return _profiled(dims, known, strides)
        if dims:
            self.unknown_dtypes[word] += 1
            return _profiled(dims, word or dtype, strides)
        return _concrete(value)


def _profiled(dims: Any, dtype: str, strides: Any) -> Tensor:
    """A tensor of a profile; what is no list of sizes, or strides that do not fit, say nothing."""
    sizes, steps = (
        tuple(given) if all(isinstance(each, int) for each in given) else ()
        for given in (each if isinstance(each, list) else [each] for each in (dims, strides))
    )
    return Tensor(sizes, dtype, strides=steps if len(steps) == len(sizes) else ())


@lru_cache(maxsize=1 << 14)
def _concrete(text: str) -> Argument:
    if not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    if text[0] == "[":
        inner = text[1:-1].strip()
        return tuple(_concrete(item.strip()) for item in inner.split(",")) if inner else ()
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


COLLECTIVES = (
    *("reduce_scatter", "all_reduce", "all_to_all", "all_gather", "broadcast", "barrier", "wait"),
    *("gather", "scatter", "reduce", "send", "recv"),
)
"""The first that is in a name, both without underscores, is its collective."""

Known = dict[str, str]


def collective_of(name: str) -> str:
    """`all_to_all` for `all_to_allv`, `alltoall_base_`, …; the name itself where none fits."""
    plain = name.lower().replace("_", "")
    return next((word for word in COLLECTIVES if word.replace("_", "") in plain), name)


def of_node(trace: ExecutionTrace, row: int) -> Known:
    """What the trace's record of a collective in `row` says."""
    said = trace.collectives[row]
    return _known(
        collective=collective_of(said.collective_name),
        process_group=str(said.pg_name),
        group_size=said.pg_size,
        group_ranks=trace.group_ranks(said),
        dtype=dtype_of_torch(said.dtype) or said.dtype,
        in_elements=said.in_msg_nelems,
        out_elements=said.out_msg_nelems,
        in_split=said.in_split,
        out_split=said.out_split,
    )


def of_event(rank: RankTrace, row: int) -> Known:
    """What the `record_param_comms` event in `row` says."""
    text = rank.strings
    word = text[int(rank.collective_dtype[row])].strip('"')
    return _known(
        collective=collective_of(text[int(rank.collective[row])]),
        process_group=text[int(rank.process_group[row])],
        group_size=int(rank.group_size[row]),
        dtype=dtype_of_torch(word) or word,
        in_elements=int(rank.in_elements[row]),
        out_elements=int(rank.out_elements[row]),
        in_split=_numbers(text[int(rank.in_split[row])]),
        out_split=_numbers(text[int(rank.out_split[row])]),
    )


def of_call(name: str, inputs: Arguments, world_size: int) -> Known:
    """What the arguments of a call such as `c10d::allreduce_` say; its group is taken as all. Of
    any other call, nothing.

    Of `c10d::alltoall_base_` and its like the first tensor is the output.
    """
    if not name.startswith("c10d::"):
        return {}
    collective = collective_of(name.removeprefix("c10d::"))
    tensors = list(tensors_in(inputs))
    if collective not in COLLECTIVES or not tensors:
        return {}
    has_output = collective in ("all_to_all", "all_gather", "reduce_scatter") and len(inputs) > 1
    sent = list(tensors_in(inputs[1 if has_output else 0])) or tensors
    got = list(tensors_in(inputs[0])) or tensors
    return of_message(collective, world_size, sent, got)


def of_message(collective: str, ranks: int, sent: Sequence[Tensor], got: Sequence[Tensor]) -> Known:
    """What the tensors say that a rank gives to a collective and gets from it."""
    return _known(
        collective=collective,
        group_size=ranks,
        dtype=(*sent, *got)[0].dtype if sent or got else "",
        in_elements=sum(tensor.elements for tensor in sent),
        out_elements=sum(tensor.elements for tensor in got),
    )


def _known(**about: str | int | Iterable[int]) -> Known:
    """The texts of what is known; -1, no text and no numbers are not."""
    known = {}
    for key, value in about.items():
        text = value if isinstance(value, str) else str(value)
        if not isinstance(value, (str, int)):
            text = ",".join(map(str, value))
        if text and value != NONE:
            known[key] = text
    return known


def _numbers(text: str) -> tuple[int, ...]:
    """The sizes in `"[2, 3]"`; none where the text is cut (`...`) or holds anything else."""
    parts = text.strip('"[] ').split(",")
    return tuple(map(int, parts)) if all(part.strip().isdigit() for part in parts) else ()
