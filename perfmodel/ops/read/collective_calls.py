"""Collectives as a program calls them in PyTorch: what one says of its group and its message, and
which later ops read what it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from perfmodel.errors import PerfmodelError
from perfmodel.ops.graph import Arguments, Op, tensors_in
from perfmodel.ops.read.arguments import COLLECTIVES, Known, collective_of, of_call, of_message

NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")
"""Whose operators write what other ranks send, where their schemas do not tell as well."""
WAIT, WORLD = "wait", "0"
_SENT, _RECEIVED = "send", "recv"
_OF_PARTS, _SUMS = ("all_to_all", "reduce_scatter"), ("all_reduce", "reduce_scatter")
"""Where each rank gets its own part of what the others give, and where these are added up."""
_ALIKE = (*_OF_PARTS, "all_reduce", "all_gather", "broadcast", WAIT)
_GIVEN = ("input", "inputs", "input_tensor", "input_tensors", "input_list", "tensors", "tensor")
_GOT = ("output", "outputs", "output_tensor", "output_tensors", "output_lists", "tensors")
"""What schemas call that which a rank gives, and that which is written."""


def of_torch_call(
    operator: str,
    named: Mapping[str, Any],
    inputs: Arguments,
    outputs: Arguments,
    node_ranks: int | None,
) -> Known:
    """The attributes of a collective called with arguments by name, among ranks of which so many
    share a node (None: the machine says); of any other operator, nothing.

    A message from rank to rank is a group of its own, sender first, on a stream of its own, as both
    of them come to it in one order. Raises `PerfmodelError` for one that is not covered.
    """
    namespace, _, name = operator.partition("::")
    if namespace not in NAMESPACES:
        return {}
    collective = collective_of(name)
    if collective == WAIT:
        return {"collective": WAIT}
    if collective not in COLLECTIVES:
        raise PerfmodelError(f"{operator}: a collective that is not covered")
    group, ranks = _group(named)
    about = {} if group == WORLD else {"stream": f"comm {group}"}
    if collective in (_SENT, _RECEIVED):
        at = next((at for key, at in named.items() if key.startswith(("dst", "src"))), None)
        if at is None:
            raise PerfmodelError("c10d::recv_any_source_: not covered: it does not name who sends")
        pair = [dist.get_rank(), ranks[at]]
        ranks = pair if collective == _SENT else pair[::-1]
        about["stream"] = "comm {}>{}".format(*ranks)
    sent, got = tensors_in(inputs), tensors_in(outputs)
    known = of_call(operator, inputs, len(ranks))
    known = known or of_message(collective, len(ranks), list(sent), list(got))
    if node_ranks is not None:
        about["nodes"] = str(len({rank // node_ranks for rank in ranks}))
    about |= {"process_group": group, "group_ranks": ",".join(map(str, ranks))}
    return known | about


def given_and_got(operator: str, named: Mapping[str, Any], answer: Any) -> tuple[Any, Any] | None:
    """What a rank gives to a collective and gets from it; None where other ranks do not do alike,
    as those that send messages."""
    name = operator.rpartition("::")[2]
    if collective_of(name) not in _ALIKE or "coalesced" in name:
        return None
    given, got = (
        next((named[key] for key in keys if key in named), answer) for keys in (_GIVEN, _GOT)
    )
    return given, got


def received(
    operator: str, named: Mapping[str, Any], *, is_sum: bool
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """What makes, of real tensors that a rank gives and of those that it gets, what is in these
    after the collective, if all ranks give what this one gives: of parts, each one its own."""
    collective = collective_of(operator.rpartition("::")[2])
    ranks = [0] if collective == WAIT else _group(named)[1]
    own = ranks.index(dist.get_rank()) if len(ranks) > 1 else 0
    times = len(ranks) if is_sum and collective in _SUMS else 1
    sizes = list(named.get("input_split_sizes") or ())

    def made(given: Sequence[Any], got: Sequence[Any]) -> list[Any]:
        if collective in _OF_PARTS:
            parts = given
            if len(given) == 1:
                parts = given[0].split(sizes) if sizes else given[0].chunk(len(ranks))
            given = [parts[own]]
        filled = []
        for number, target in enumerate(got):
            flat = given[min(number, len(given) - 1)].reshape(-1) * times
            copies = -(-target.numel() // max(flat.numel(), 1))
            filled.append(target.copy_(flat.repeat(copies)[: target.numel()].view(target.shape)))
        return filled

    return made


def _group(named: Mapping[str, Any]) -> tuple[str, list[int]]:
    """The name of a call's process group, and its ranks."""
    if "group_name" in named:
        group = dist.distributed_c10d._resolve_process_group(named["group_name"])
    else:
        group = dist.ProcessGroup.unbox(named["process_group"])
    return group.group_name, dist.get_process_group_ranks(group)


def reads_of_collectives(ops: Sequence[Op]) -> NDArray[np.int64]:
    """`[E, 2]`: (collective, the first op after it that touches what it wrote), by index of `ops`.

    A wait for it, which hands on a tensor, and a view are none; nor is what is written to a part of
    the same storage, as other gradients of a bucket are: offsets are not known.
    """
    written: dict[int, int] = {}
    edges = []
    for index, op in enumerate(ops):
        word = op.attributes.get("collective")
        held = [t.storage_id for t in (*op.tensors, *tensors_in(op.outputs))]
        if word == WAIT:
            behind = [written.pop(storage) for storage in held if storage in written]
            written |= dict.fromkeys(held, max(behind)) if behind else {}
            continue
        ahead = {written[storage] for storage in held if storage in written}
        fills_a_part = False
        if ahead and op.name == "aten::copy_" and op.tensors[0].storage_id in written:
            least = min(max(t.elements for t in ops[at].tensors) for at in ahead)
            fills_a_part = op.tensors[0].elements < least
        if word is None and (fills_a_part or _is_view(op)):
            continue
        written = {storage: at for storage, at in written.items() if storage not in held}
        edges += [(source, index) for source in sorted(ahead)]
        if word is not None:
            written |= dict.fromkeys(held, index)
    return np.array(edges, np.int64).reshape(-1, 2)


def _is_view(op: Op) -> bool:
    """Whether all that it returns lies where its arguments do, and it writes none."""
    made = {t.storage_id for t in tensors_in(op.outputs)}
    writes = op.name.endswith("_") and not op.name.endswith("__")  # `aten::__getitem__` does not
    return bool(made) and not writes and made <= {t.storage_id for t in op.tensors}
