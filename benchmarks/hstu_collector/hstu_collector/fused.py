"""Parts of a sequential recommender by the Triton kernels of `kernels.py`, with gradients.

Each function computes what that of the same name in `plain.py` does. Imports PyTorch and
Triton; on a CPU it runs in Triton's interpreter alone.
"""

from __future__ import annotations

from typing import Any

import torch

from hstu_collector import kernels
from hstu_collector.cases import (
    BACKWARD_PROGRAMS_PER_SM,
    BLOCKS,
    CONTEXT,
    CPU_PROGRAMS,
    JOINED_ROWS,
    KEPT,
    SUMMED_ROWS,
    TARGETS,
    WIDE_BLOCKS,
)

WARPS = 2
FORWARD, BACKWARD = "64x64", "32x64 atomic"
WIDE_FORWARD = "128x64"
"""Blocks of attention, the faster of an H200 (traces/h200/sequential.csv.gz), those of heads of 256
apart."""


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(about: Any, x: Any, weight: Any, bias: Any, swish: bool) -> Any:
        out, (count, cols) = torch.empty_like(x), x.shape
        fixed = {"COLS": cols, "ROWS": 1, "SWISH": swish, "num_warps": WARPS}
        kernels.norm_forward[count,](x, weight, bias, out, count, **fixed)
        about.save_for_backward(x, weight, bias)
        about.fixed = fixed
        return out

    @staticmethod
    def backward(about: Any, given: Any) -> Any:
        x, weight, bias = about.saved_tensors
        of_x, sums = torch.empty_like(x), _shares(x)
        taken = (given.contiguous(), x, weight, bias, of_x, *sums, len(x))
        kernels.norm_backward[len(sums[0]),](*taken, **about.fixed)
        return of_x, *(each.sum(0) for each in sums), None


norm = _Norm.apply


def _shares(x: Any) -> list[Any]:
    """A row per program for the gradients of weight and bias."""
    programs = CPU_PROGRAMS
    if x.is_cuda:
        about = torch.cuda.get_device_properties(x.device)
        programs = BACKWARD_PROGRAMS_PER_SM * about.multi_processor_count
    return [torch.empty((programs, x.shape[1]), device=x.device) for _ in range(2)]


def _moved(
    left: Any, right: Any, joined: Any, ends: tuple[Any, Any], longest: int, way: bool
) -> None:
    grid = (-(-longest // JOINED_ROWS), len(ends[0]) - 1)
    fixed = {"COLS": joined.shape[1], "ROWS": JOINED_ROWS, "SPLIT": way}
    kernels.concat_jagged[grid](left, right, joined, *ends, **fixed)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        about: Any, left: Any, right: Any, left_ends: Any, right_ends: Any, longest: int
    ) -> Any:
        out = left.new_empty((len(left) + len(right), left.shape[1]))
        about.shapes = left.shape, right.shape
        about.ends, about.longest = (left_ends, right_ends), longest
        _moved(left, right, out, about.ends, longest, False)
        return out

    @staticmethod
    def backward(about: Any, given: Any) -> Any:
        left, right = (given.new_empty(shape) for shape in about.shapes)
        _moved(left, right, given.contiguous(), about.ends, about.longest, True)
        return left, right, None, None, None


join = _Join.apply


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(about: Any, x: Any, left_ends: Any, right_ends: Any, longest: int) -> Any:
        samples = len(right_ends) - 1
        right = x.new_empty((samples * TARGETS, x.shape[1]))
        left = x.new_empty((len(x) - len(right), x.shape[1]))
        about.ends, about.longest = (left_ends, right_ends), longest
        _moved(left, right, x, about.ends, longest, True)
        return left, right

    @staticmethod
    def backward(about: Any, left: Any, right: Any) -> Any:
        out = left.new_empty((len(left) + len(right), left.shape[1]))
        _moved(left, right, out, about.ends, about.longest, False)
        return out, None, None, None


split = _Split.apply


class _Positions(torch.autograd.Function):
    @staticmethod
    def forward(
        about: Any, x: Any, ages: Any, by_place: Any, by_age: Any, ends: Any, longest: int
    ) -> Any:
        out = torch.empty_like(x)
        ids = [torch.empty(len(x), dtype=torch.int32, device=x.device) for _ in range(2)]
        grid = (-(-longest // JOINED_ROWS), len(ends) - 1)
        fixed = {"COLS": x.shape[1], "ROWS": JOINED_ROWS, "CONTEXT": CONTEXT}
        fixed |= {"PLACES": len(by_place), "AGES": len(by_age)}
        kernels.add_positions[grid](x, ages, by_place, by_age, *ids, out, ends, **fixed)
        about.save_for_backward(*ids)
        about.rows = len(by_place), len(by_age)
        return out

    @staticmethod
    def backward(about: Any, given: Any) -> Any:
        """Rows in the order of their place, and of their age, then added up."""
        given, made = given.contiguous(), []
        for ids, rows in zip(about.saved_tensors, about.rows, strict=True):
            ordered, order = torch.sort(ids)
            bounds = torch.arange(rows + 1, device=ids.device, dtype=torch.int32)
            starts = torch.searchsorted(ordered, bounds)
            out = torch.empty((rows, given.shape[1]), device=ids.device)
            fixed = {"COLS": given.shape[1], "ROWS": SUMMED_ROWS}
            kernels.add_sorted_rows[rows,](given, order, starts, out, **fixed)
            made.append(out)
        return given, None, *made, None, None


add_positions = _Positions.apply


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(about: Any, uvqk: Any, ends: Any, longest: int, heads: int) -> Any:
        gates, v, q, k = uvqk.chunk(4, 1)
        dim = q.shape[1] // heads
        fixed = {"STRIDE": uvqk.stride(0), "HEADS": heads, "DIM": dim}
        fixed |= {"CONTEXT": CONTEXT, "TARGETS": TARGETS}
        about.numbers, about.fixed, about.longest = (dim**-0.5, 1.0 / longest), fixed, longest
        u, attended = torch.empty_like(q), torch.empty_like(q)
        blocks = BLOCKS["fwd", WIDE_FORWARD if dim > 128 else FORWARD]
        grid = (-(-longest // blocks["ROWS"]), (len(ends) - 1) * heads)
        given = (q, k, v, attended, ends, *about.numbers)
        kernels.attention_forward[grid](*given, **fixed, **blocks)
        torch.ops.aten.silu.out(gates, out=u)
        about.save_for_backward(uvqk, ends)
        return u, attended

    @staticmethod
    def backward(about: Any, of_u: Any, given: Any) -> Any:
        uvqk, ends = about.saved_tensors
        gates, v, q, k = uvqk.chunk(4, 1)
        made = torch.empty_like(uvqk)
        of_gates, of_v, of_q, of_k = made.chunk(4, 1)
        heads, dim = about.fixed["HEADS"], about.fixed["DIM"]
        total = torch.zeros(q.shape, device=q.device)
        blocks = BLOCKS["bwd", BACKWARD] | (WIDE_BLOCKS[BACKWARD] if dim > 128 else {})
        grid = (-(-about.longest // blocks["COLUMNS"]), (len(ends) - 1) * heads)
        taken = (q, k, v, given.contiguous(), total, of_k, of_v, ends, *about.numbers)
        kernels.attention_backward[grid](*taken, ATOMIC=True, **about.fixed, **blocks)
        of_q.copy_(total)
        torch.ops.aten.silu_backward.grad_input(of_u, gates, grad_input=of_gates)
        return made, None, None, None


attend = _Attend.apply


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(
        about: Any, u: Any, attended: Any, weight: Any, bias: Any, seed: int, kept: float
    ) -> Any:
        count, cols = u.shape
        out = u.new_empty((count, 3 * cols))
        about.numbers = count, seed, kept
        about.fixed = {"COLS": cols, "ROWS": 1, "DROPS": kept < 1.0, "num_warps": WARPS}
        given = (attended, u, weight, bias, out, *about.numbers)
        kernels.gated_forward[count,](*given, **about.fixed)
        about.save_for_backward(attended, u, weight, bias)
        return out

    @staticmethod
    def backward(about: Any, given: Any) -> Any:
        attended, u, weight, bias = about.saved_tensors
        of_attended, of_u, sums = torch.empty_like(u), torch.empty_like(u), _shares(u)
        taken = (given.contiguous(), attended, u, weight, bias, of_attended, of_u, *sums)
        kernels.gated_backward[len(sums[0]),](*taken, *about.numbers, **about.fixed)
        return of_u, of_attended, *(each.sum(0) for each in sums), None, None


def gate(u: Any, attended: Any, weight: Any, bias: Any, seed: int, kept: float = KEPT) -> Any:
    """As in `plain.py`, with random numbers by `seed`, drawn in either pass."""
    return _Gate.apply(u, attended, weight, bias, seed, kept)


def update_rows(table: Any, state: Any, rows: Any, gradient: Any, rate: float) -> None:
    """As in `plain.py`."""
    given = (table, state, rows, gradient, rate)
    kernels.update_rows[len(rows),](*given, COLS=table.shape[1])
