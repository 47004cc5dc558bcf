"""What is known of a collective, as attributes of its op.

`collective` (`all_reduce all_to_all all_gather reduce_scatter broadcast reduce gather scatter send
recv barrier wait`), `process_group`, `group_size`, `group_ranks`, `dtype`, `in_elements`,
`out_elements`, `in_split`, `out_split` (elements or rows per peer; absent for equal parts). Lists
are numbers with commas between. A call (`c10d::alltoall_base_`) carries what its arguments tell,
the `record_param_comms` in it what the file says: where there is one, it is the collective.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfmodel.ops.dtypes import dtype_of_torch
from perfmodel.ops.graph import Argument, tensors_in
from perfmodel.trace.columns import NONE, RankTrace

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace

_WORDS = (
    ("reduce_scatter", "reducescatter"),
    ("all_reduce", "allreduce"),
    ("all_to_all", "alltoall"),
    ("all_gather", "allgather"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("wait", "wait"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
"""A collective, and what is in its names when underscores are taken out; the first that fits."""

Known = dict[str, str]


def collective_of(name: str) -> str:
    """`all_to_all` for `all_to_allv`, `alltoall_base_`, …; the name itself where none fits."""
    plain = name.lower().replace("_", "")
    return next((word for word, part in _WORDS if part in plain), name)


def of_node(trace: ExecutionTrace, record: int) -> Known:
    """What row `record` of the trace's collectives says."""
    table, text = trace.collectives, trace.strings
    return _known(
        collective=collective_of(text[int(table.name[record])]),
        process_group=text[int(table.group[record])],
        group_size=int(table.group_size[record]),
        group_ranks=trace.group_ranks(record),
        dtype=_dtype(text[int(table.dtype[record])]),
        in_elements=int(table.in_elements[record]),
        out_elements=int(table.out_elements[record]),
        in_split=table.in_split[record],
        out_split=table.out_split[record],
    )


def of_event(rank: RankTrace, row: int) -> Known:
    """What the `record_param_comms` event in `row` says."""
    text = rank.strings
    return _known(
        collective=collective_of(text[int(rank.collective[row])]),
        process_group=text[int(rank.process_group[row])],
        group_size=int(rank.group_size[row]),
        dtype=_dtype(text[int(rank.collective_dtype[row])].strip('"')),
        in_elements=int(rank.in_elements[row]),
        out_elements=int(rank.out_elements[row]),
        in_split=_numbers(text[int(rank.in_split[row])]),
        out_split=_numbers(text[int(rank.out_split[row])]),
    )


def of_call(name: str, inputs: tuple[Argument, ...], world_size: int) -> Known:
    """What the arguments of a call such as `c10d::allreduce_` say; its group is taken as all.

    Of `c10d::alltoall_base_` and its like the first tensor is the output.
    """
    collective = collective_of(name.partition("::")[2])
    tensors = list(tensors_in(inputs))
    if collective not in dict(_WORDS) or not tensors:
        return {}
    has_output = collective in ("all_to_all", "all_gather", "reduce_scatter") and len(inputs) > 1
    sent = list(tensors_in(inputs[1 if has_output else 0])) or tensors
    got = list(tensors_in(inputs[0])) or tensors
    return _known(
        collective=collective,
        group_size=world_size,
        dtype=sent[0].dtype,
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


def _dtype(word: str) -> str:
    return dtype_of_torch(word) or word


def _numbers(text: str) -> tuple[int, ...]:
    """The sizes in `"[2, 3]"`; none where the text is cut (`...`) or holds anything else."""
    parts = text.strip('"[] ').split(",")
    return tuple(map(int, parts)) if all(part.strip().isdigit() for part in parts) else ()
