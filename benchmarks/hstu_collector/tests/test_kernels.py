"""Triton kernels over jagged sequences beside PyTorch in fp32, run by Triton's interpreter.

With TRITON_INTERPRET=1, which Triton reads when it is imported.

The interpreter multiplies no bf16, so fp16 stands for it.
"""

from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hstu_collector import cases as family

from perfmodel.collect import backend as backends
from perfmodel.collect.families import FAMILIES, Case, Scope

torch: Any = import_module("torch")
LENGTHS = (21, 12, 40)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
GPU = Scope("cuda", ("bf16", "fp32"), max_bytes=8e9, max_flop=4e12)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file of kernels, whose functions the interpreter runs on the CPU."""
    interpreter = import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        """NumPy 2.4 makes no number of an array of one element."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    return import_module("hstu_collector.kernels")


def attended(q: Any, k: Any, v: Any, alpha: float, scale: float) -> Any:
    """HSTU's attention, one sequence after the other, over all pairs and then masked."""
    parts = []
    for begin, end in pairwise(OFFSETS):
        place = torch.arange(end - begin)
        last = end - begin - family.TARGETS - family.CONTEXT + 1
        ids = torch.clamp(place - family.CONTEXT + 1, 0, int(last))
        rows, columns = ids[:, None], ids[None, :]
        seen = (rows > columns) | (place[:, None] == place) | ((rows == 0) & (columns == 0))
        scores = torch.einsum("ihd,jhd->hij", q[begin:end], k[begin:end]) * alpha
        weights = torch.nn.functional.silu(scores) * scale * seen
        parts.append(torch.einsum("hij,jhd->ihd", weights, v[begin:end]))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "limit"), [(32, 16, "float32", 1e-5), (16, 32, "float16", 2e-3)]
)
def test_attention_and_its_gradients(
    kernels: Any, rows: int, columns: int, dtype: str, limit: float
) -> None:
    torch.manual_seed(0)
    heads, dim, kind = 2, 32, getattr(torch, dtype)
    shape = (int(OFFSETS[-1]), heads, dim)
    q, k, v, given = (torch.randn(shape).to(kind) for _ in range(4))
    numbers = (dim**-0.5, 1.0 / max(LENGTHS))
    mine = [each.float().requires_grad_() for each in (q, k, v)]
    expected = attended(*mine, *numbers)
    expected.backward(given.float())
    fixed = {"HEADS": heads, "DIM": dim, "CONTEXT": family.CONTEXT, "TARGETS": family.TARGETS}
    fixed |= {"STRIDE": heads * dim, "ROWS": rows, "COLUMNS": columns}
    offsets, out, pairs = torch.from_numpy(OFFSETS), torch.empty_like(q), len(LENGTHS) * heads
    grid = (-(-max(LENGTHS) // rows), pairs)
    kernels.attention_forward[grid](q, k, v, out, offsets, *numbers, **fixed)
    expected = expected.detach()
    assert float((out - expected).norm() / expected.norm()) < limit
    for atomic in (True, False):
        of_q, of_k, of_v = torch.zeros(shape), torch.empty_like(k), torch.empty_like(v)
        grid = (-(-max(LENGTHS) // columns) if atomic else 1, pairs)
        operands = (q, k, v, given, of_q, of_k, of_v, offsets, *numbers)
        kernels.attention_backward[grid](*operands, ATOMIC=atomic, **fixed)
        for made, leaf in zip((of_q, of_k, of_v), mine, strict=True):
            assert float((made - leaf.grad).norm() / leaf.grad.norm()) < limit


@pytest.mark.parametrize(("rows", "drops"), [(1, False), (4, True)])
def test_gated_norm_and_its_gradients(kernels: Any, rows: int, drops: bool) -> None:
    torch.manual_seed(0)
    count, cols, share, programs = 13, 64, 0.8, 3
    x, u, given = torch.randn(count, cols), torch.randn(count, cols), torch.randn(count, 3 * cols)
    weight, bias, out = torch.randn(cols), torch.randn(cols), torch.empty(count, 3 * cols)
    fixed = {"COLS": cols, "ROWS": rows, "DROPS": drops}
    grid = (-(-count // rows),)
    kernels.gated_forward[grid](x, u, weight, bias, out, count, 7, share, **fixed)
    leaves = [each.clone().requires_grad_() for each in (x, u, weight, bias)]
    normed = torch.nn.functional.layer_norm(leaves[0], (cols,), leaves[2], leaves[3], 1e-6)
    joined = torch.cat([leaves[1], leaves[0], normed * leaves[1]], 1)
    kept = (out != 0).float() / share if drops else torch.ones_like(out)
    assert float((kept > 0).float().mean()) == pytest.approx(share if drops else 1.0, abs=0.02)
    torch.testing.assert_close(out, (joined * kept).detach(), rtol=1e-4, atol=1e-5)
    (joined * kept).backward(given)
    of_x, of_u = torch.empty_like(x), torch.empty_like(u)
    sums = [torch.empty(programs, cols) for _ in range(2)]
    taken = (given, x, u, weight, bias, of_x, of_u, *sums, count, 7, share)
    kernels.gated_backward[programs,](*taken, **fixed)
    made = (of_x, of_u, *(each.sum(0) for each in sums))
    for mine, leaf in zip(made, leaves, strict=True):
        torch.testing.assert_close(mine, leaf.grad, rtol=1e-4, atol=1e-5)


def test_dropout_joins_and_sums_of_rows(kernels: Any) -> None:
    torch.manual_seed(0)
    x, out = torch.randn(2000), torch.empty(2000)
    kernels.dropout[8,](x, out, 2000, 3, 0.8, BLOCK=256, DROPS=True)
    torch.testing.assert_close(out, x / 0.8 * (out != 0))
    masks = torch.empty(3, 2000, dtype=torch.uint8)
    kernels.dropout_masks[8,](masks, 2000, 3, 0.8, BLOCK=256)
    assert masks.float().mean(1).tolist() == pytest.approx([0.8] * 3, abs=0.02)
    left, right = torch.randn(30, 16), torch.randn(4, 16)
    ends = torch.tensor([0, 5, 5, 30]), torch.tensor([0, 1, 2, 4])
    joined = torch.empty(34, 16)
    kernels.concat_jagged[4, 3](left, right, joined, *ends, COLS=16, ROWS=8)
    order = [left[:5], right[:1], right[1:2], left[5:], right[2:]]
    torch.testing.assert_close(joined, torch.cat(order))
    ids, rows, sums = torch.randint(0, 9, (50,)), torch.randn(50, 16), torch.empty(9, 16)
    ordered, places = torch.sort(ids)
    starts = torch.searchsorted(ordered, torch.arange(10))
    kernels.add_sorted_rows[9,](rows, places, starts, sums, COLS=16, ROWS=8)
    torch.testing.assert_close(sums, torch.zeros(9, 16).index_add_(0, ids, rows))


def operands() -> dict[str, tuple[Any, ...]]:
    """Of each function of a sequential recommender, small ones."""
    torch.manual_seed(0)
    cols, ends, ones = 32, torch.from_numpy(OFFSETS), torch.arange(len(LENGTHS) + 1)
    count, longest = int(OFFSETS[-1]), max(LENGTHS)
    x, scale, shift = torch.randn(count, cols), torch.randn(cols), torch.randn(cols)
    ages = torch.randint(0, 10**4, (count - family.CONTEXT * len(LENGTHS),))
    rows, by_age = torch.randn(40, cols), torch.randn(90, cols)
    return {
        "norm": (x, scale, shift, True),
        "join": (x, torch.randn(len(LENGTHS), cols), ends, ones, longest + 1),
        "split": (x, ends - ones, ones, longest),
        "add_positions": (x, ages, rows, by_age, ends, longest),
        "attend": (torch.randn(count, 4 * cols), ends, longest, 2),
        "gate": (x, torch.randn(count, cols), scale, shift, 3, 1.0),
    }


@pytest.mark.parametrize("name", list(operands()))
def test_fused_functions_and_gradients_are_those_of_plain_ones(kernels: Any, name: str) -> None:
    made = []
    for way in ("fused", "plain"):
        given = [
            each.clone().requires_grad_() if getattr(each, "is_floating_point", bool)() else each
            for each in operands()[name]
        ]
        out = getattr(import_module(f"hstu_collector.{way}"), name)(*given)
        out = out if isinstance(out, tuple) else (out,)
        torch.manual_seed(1)
        torch.autograd.backward(out, [torch.randn(each.shape) for each in out])
        leaves = [each for each in given if getattr(each, "requires_grad", False)]
        made.append([*out, *(leaf.grad for leaf in leaves)])
    for fused, plain in zip(*made, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


def test_rows_are_updated_in_place(kernels: Any) -> None:
    rows, gradient = torch.tensor([3, 0]), torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    for way in ("fused", "plain"):
        table, state = torch.ones(5, 2), torch.zeros(5)
        module = import_module(f"hstu_collector.{way}")
        module.update_rows(table, state, rows, gradient, 0.1)
        assert state.tolist() == [2.0, 0.0, 0.0, 12.5, 0.0]
        assert table[3].tolist() == pytest.approx([1 - 0.3 / 12.5**0.5, 1 - 0.4 / 12.5**0.5])
        assert table[1].tolist() == [1.0, 1.0]


SMALL = {"elements": 3 * 512 * 4, "rows": 8, "cols": 64, "tensors": 2, "hash_size": 4}
SMALL |= {"batch": 2, "max_length": 32, "heads": 1, "head_dim": 16, "value_dim": 16}
SMALL |= {"b": 1, "m": 4, "n": 4, "k": 8}


def test_every_kind_of_case_runs(kernels: Any) -> None:
    cpu = backends.open_backend("cpu")
    first: dict[tuple[str, ...], Case] = {}
    for case in FAMILIES["hstu"].cases(GPU):
        first.setdefault(case.group, case)
    assert len(first) == 30
    for case in first.values():
        dims = {name: SMALL.get(name, value) for name, value in case.dims.items()}
        small = Case(case.op, "fp32", dims, case.direction, case.variant)
        FAMILIES["hstu"].prepare(cpu, small).run()


def test_cases_say_how_much_work_there_is() -> None:
    cases = list(FAMILIES["hstu"].cases(GPU))
    equal = next(case for case in cases if case.op == "jagged_attention")
    assert (equal.dim("tokens"), equal.dim("pairs")) == (128 * 1024, 128 * 1024 * 1025 // 2)
    lengths = family.lengths_of(1000, 100, "spread")
    assert lengths.mean() == pytest.approx(40, rel=0.05)
    assert (lengths == family.lengths_of(1000, 100, "spread")).all()


def test_there_is_nothing_to_time_without_a_gpu() -> None:
    assert not list(FAMILIES["hstu"].cases(Scope("cpu", ("fp32", "bf16"))))
