"""Mechanisms of sequential recommenders (HSTU), on a CUDA device: jagged attention without softmax
and its gradients, gated norms, dropout, joins, sums of rows, products over millions of positions.

Dims are those of the ops in perfmodel's vocabulary. Attention: `tokens` of all sequences, `pairs`
of a position and one that it sees (the sum of squared lengths is `2 * pairs - tokens`). Gradients
of queries are added to an fp32 buffer, whose zeros and rounding are not timed; `atomic` variants
have a program per block of keys, `whole` one per sequence and head. An `elementwise` row counts
its widest operand, `reads` and `writes` in parts of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, Case, Family, Prepared, Scope
from perfmodel.collect.families import random_tensor as random

ATTENTION = "jagged_attention"
EQUAL, SPREAD, NARROW = "equal", "spread", "narrow"
BETA = {SPREAD: (2.0, 3.0), NARROW: (20.0, 11.0)}
"""Parameters of the beta distribution of length / maximum: mean 0.4 and 0.65."""
SHAPES = (
    *((128, 1024, EQUAL, 4, 128), (256, 2048, SPREAD, 4, 128), (64, 2048, EQUAL, 4, 256)),
    *((32, 8192, EQUAL, 4, 128), (512, 1024, SPREAD, 2, 128), (1024, 256, EQUAL, 4, 128)),
    *((128, 4096, SPREAD, 4, 256), (256, 4096, NARROW, 4, 128), (32, 4096, EQUAL, 2, 128)),
    *((1024, 512, EQUAL, 4, 128), (256, 512, EQUAL, 4, 256), (64, 8192, SPREAD, 4, 128)),
    *((128, 2048, EQUAL, 2, 128), (512, 512, SPREAD, 4, 128), (32, 8192, SPREAD, 4, 256)),
    *((32, 1024, EQUAL, 4, 128), (128, 4096, EQUAL, 4, 128), (1024, 256, SPREAD, 2, 128)),
    *((512, 1024, EQUAL, 4, 256), (256, 1024, EQUAL, 4, 128), (1024, 1024, SPREAD, 4, 128)),
    *((128, 4096, SPREAD, 4, 128), (32, 1024, EQUAL, 4, 256), (64, 8192, SPREAD, 2, 128)),
)
"""Sequences, their longest, how lengths are spread, heads and their width."""
CONTEXT, TARGETS = 8, 1
BLOCKS = {
    ("fwd", "128x64"): {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 2},
    ("fwd", "64x64"): {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2},
    ("bwd", "64x64 atomic"): {"ROWS": 64, "COLUMNS": 64, "num_warps": 8, "num_stages": 2},
    ("bwd", "32x64 atomic"): {"ROWS": 32, "COLUMNS": 64, "num_warps": 4, "num_stages": 2},
    ("bwd", "64x64 whole"): {"ROWS": 64, "COLUMNS": 64, "num_warps": 8, "num_stages": 2},
}
"""Per direction and variant: rows of queries and of keys that a program holds, its warps."""
WIDE_BLOCKS = {
    "64x64": {"num_warps": 8},
    "64x64 atomic": {"num_stages": 1},
    "64x64 whole": {"num_stages": 1},
    "32x64 atomic": {"num_warps": 8},
}
"""What heads of 256 need otherwise, so that it fits on chip."""
POSITIONS = (1_048_576, 2_097_152, 262_144, 2_793_472)
WIDTH = 512
PHILOX_FLOP = 440.0
"""Of a call, which gives four numbers: 10 rounds of 4 multiplications at a quarter of the rate and
6 other instructions, each a multiply-add. Source: Salmon et al. 2011, counted."""
SEED, KEPT, DROPPED = 7, 0.8, 0.2
Amounts = tuple[float, float, float, float]
VECTORS: dict[str, Amounts] = {
    "gated_norm": (3, 2 / 3, 1, 1),
    "gated_norm_dropout": (3, 2 / 3, 1, PHILOX_FLOP / 3),
    "gated_norm_dropout 4 rows": (3, 2 / 3, 1, PHILOX_FLOP / 3),
    "gated_norm_backward": (3, 5 / 3, 2 / 3, 1),
    "gated_norm_dropout_backward": (3, 5 / 3, 2 / 3, PHILOX_FLOP / 3),
    "gated_norm_dropout_backward 4 rows": (3, 5 / 3, 2 / 3, PHILOX_FLOP / 3),
    "dropout_masks": (3, 0, 1, PHILOX_FLOP / 3),
    "dropout_triton": (1, 1, 1, PHILOX_FLOP),
    "copy_triton": (1, 1, 1, 0),
    "dropout": (1, 1, 1.5, 1),
    "silu_backward": (1, 2, 1, 1),
    "concat_jagged": (1, 1, 1, 0),
}
"""Per variant of `elementwise`: values of the widest operand per position and column, operands of
that size read and written, work per value."""
ROW_SUMS = (8_192, 2_048, 65_536)
PRODUCTS = (
    *(("tn", 512, 2048, 0), ("tn", 1536, 512, 0), ("nt", 0, 2048, 512)),
    *(("nn", 0, 512, 2048), ("nt", 0, 512, 1536)),
)
"""Layout and m, n, k of products, 0 for the positions: weight gradients, forward, of inputs."""


def lengths_of(batch: int, longest: int, spread: str) -> NDArray[np.int64]:
    """Lengths of `batch` sequences of at most `longest` positions, the same each time."""
    if spread == EQUAL:
        return np.full(batch, longest)
    drawn = np.random.default_rng(0).beta(*BETA[spread], batch) * longest
    return np.clip(drawn.astype(np.int64), CONTEXT + TARGETS + 1, longest)


def sequential_cases(scope: Scope) -> Iterator[Case]:
    """Attention and what surrounds it, in bf16; none where there is no GPU."""
    if not scope.is_gpu or "bf16" not in scope.dtypes:
        return
    for shape in SHAPES:
        yield from _attention_cases(shape, scope)
    for positions in POSITIONS:
        for case in _vector_cases(positions):
            if case.size_bytes <= 2 * scope.max_bytes:
                yield case


def _attention_cases(shape: tuple[int, int, str, int, int], scope: Scope) -> Iterator[Case]:
    batch, longest, spread, heads, dim = shape
    lengths = lengths_of(batch, longest, spread)
    tokens, pairs = int(lengths.sum()), int((lengths * (lengths + 1)).sum()) // 2
    dims: dict[str, float | str] = {
        "tokens": tokens,
        "pairs": pairs,
        "heads": heads,
        "head_dim": dim,
        "value_dim": dim,
        "batch": batch,
        "max_length": longest,
        "lengths": spread,
    }
    if 4.0 * pairs * heads * dim <= scope.max_flop:
        for direction, variant in BLOCKS:
            size = tokens * heads * dim * (8 if direction == "fwd" else 18)
            yield Case(ATTENTION, "bf16", dims, direction, variant, size)


def _vector_cases(positions: int) -> Iterator[Case]:
    shape: dict[str, float | str] = {"rows": positions, "cols": WIDTH}
    plane = 2.0 * positions * WIDTH
    for variant, amounts_of in VECTORS.items():
        times, reads, writes, flop = (round(each, 6) for each in amounts_of)
        amounts = {"reads": reads, "writes": writes, "flop_per_element": flop}
        dims: dict[str, float | str] = {"elements": positions * WIDTH * times, **amounts}
        dtype = "bool" if variant == "dropout_masks" else "bf16"
        size = DTYPE_BYTES["bf16"] * positions * WIDTH * times * (reads + writes)
        yield Case("elementwise", dtype, dims, variant=variant, size_bytes=size)
    yield Case("silu", "bf16", shape, size_bytes=2 * plane)
    yield Case("layer_norm", "bf16", shape, size_bytes=2 * plane)
    yield Case("layer_norm", "bf16", shape, "bwd", size_bytes=3 * plane)
    wide: dict[str, float | str] = {"rows": positions, "cols": 4 * WIDTH}
    yield Case("sum_rows", "bf16", wide, size_bytes=4 * plane)
    half: dict[str, float | str] = {"rows": positions // 2, "cols": WIDTH, "tensors": 2}
    yield Case("cat", "bf16", half, variant="along rows", size_bytes=2 * plane)
    yield Case("sort", "int32", {"rows": 1, "cols": positions}, size_bytes=16 * positions)
    for number, hash_size in enumerate(ROW_SUMS):
        table = {**shape, "hash_size": hash_size}
        yield Case("index_add", "bf16", table, variant="sorted", size_bytes=plane)
        if number == 0:
            yield Case("index_add", "bf16", table, size_bytes=plane)
            yield Case("index_add", "fp32", table, size_bytes=2 * plane)
            yield Case("index_select", "bf16", table, size_bytes=plane)
    for layout, *sides in PRODUCTS:
        m, n, k = (side or positions for side in sides)
        product: dict[str, float | str] = {"b": 1, "m": m, "n": n, "k": k, "layout": layout}
        yield Case("mm", "bf16", product, size_bytes=2.0 * (m * k + k * n + m * n))


def prepare_sequential(backend: Backend, case: Case) -> Prepared:
    """The kernel of `case` on random operands; what Triton refuses is a `RuntimeError`."""
    if case.op == ATTENTION:
        return Prepared(_checked(_attention(backend, case)))
    if case.op == "elementwise":
        return Prepared(_checked(_VECTORS[case.variant.split()[0]](backend, case)))
    return Prepared(_checked(_OPERATORS[case.op](backend, case)))


FAMILY = Family(sequential_cases, prepare_sequential)


def _kernels() -> Any:
    try:
        return import_module("hstu_collector.kernels")
    except ImportError as error:
        raise RuntimeError(f"Triton cannot be imported here: {error}") from None


def _checked(run: Callable[[], Any]) -> Callable[[], Any]:
    """`run`, called once: Triton's own errors are of no kind that the collector knows."""
    try:
        run()
    except (RuntimeError, MemoryError):
        raise
    except Exception as error:
        raise RuntimeError(str(error)) from None
    return run


def _offsets(backend: Backend, lengths: NDArray[np.int64]) -> Any:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return backend.torch.from_numpy(ends.astype(np.int64)).to(backend.device)


def _attention(backend: Backend, case: Case) -> Callable[[], Any]:
    kernels, torch = _kernels(), backend.torch
    heads, dim, longest = case.dim("heads"), case.dim("head_dim"), case.dim("max_length")
    lengths = lengths_of(case.dim("batch"), longest, str(case.dims["lengths"]))
    offsets = _offsets(backend, lengths)
    shape = (int(lengths.sum()), heads, dim)
    q, k, v, other = (random(backend, shape, case.dtype) for _ in range(4))
    blocks = dict(BLOCKS[case.direction, case.variant])
    if dim > 128:
        blocks |= WIDE_BLOCKS.get(case.variant, {})
    fixed = {"STRIDE": heads * dim, "HEADS": heads, "DIM": dim}
    fixed |= {"CONTEXT": CONTEXT, "TARGETS": TARGETS, **blocks}
    numbers = (dim**-0.5, 1.0 / longest)
    pairs = len(lengths) * heads
    if case.direction == "fwd":
        grid = (-(-int(lengths.max()) // blocks["ROWS"]), pairs)
        return lambda: kernels.attention_forward[grid](q, k, v, other, offsets, *numbers, **fixed)
    of_k, of_v = torch.empty_like(k), torch.empty_like(v)
    of_q = torch.zeros(shape, device=backend.device)
    atomic = case.variant.endswith("atomic")
    grid = (-(-int(lengths.max()) // blocks["COLUMNS"]) if atomic else 1, pairs)
    given = (q, k, v, other, of_q, of_k, of_v, offsets, *numbers)
    return lambda: kernels.attention_backward[grid](*given, ATOMIC=atomic, **fixed)


BACKWARD_PROGRAMS_PER_SM = 8
CPU_PROGRAMS = 2


def _gated(backend: Backend, case: Case) -> Callable[[], Any]:
    """One row per program, or four; backward, programs that stay and go over many."""
    kernels, torch = _kernels(), backend.torch
    rows = case.dim("elements") // (3 * WIDTH)
    x, u = (random(backend, (rows, WIDTH), case.dtype) for _ in range(2))
    weight, bias = (torch.ones(WIDTH, device=backend.device) for _ in range(2))
    joined = random(backend, (rows, 3 * WIDTH), case.dtype)
    per_program = 4 if case.variant.endswith("4 rows") else 1
    fixed = {"COLS": WIDTH, "ROWS": per_program, "DROPS": "dropout" in case.variant}
    fixed |= {"num_warps": 4 if per_program > 1 else 2}
    if "backward" not in case.variant:
        given = (x, u, weight, bias, joined, rows, SEED, KEPT)
        grid = (-(-rows // per_program),)
        return lambda: kernels.gated_forward[grid](*given, **fixed)
    programs = CPU_PROGRAMS
    if backend.is_gpu:
        about = torch.cuda.get_device_properties(backend.index)
        programs = BACKWARD_PROGRAMS_PER_SM * about.multi_processor_count
    of_x, of_u = torch.empty_like(x), torch.empty_like(u)
    sums = [torch.empty((programs, WIDTH), device=backend.device) for _ in range(2)]
    taken = (joined, x, u, weight, bias, of_x, of_u, *sums, rows, SEED, KEPT)
    return lambda: kernels.gated_backward[programs,](*taken, **fixed)


VECTOR_BLOCK = 1024


def _masks(backend: Backend, case: Case) -> Callable[[], Any]:
    kernels, count = _kernels(), case.dim("elements") // 3
    out = backend.torch.empty(3 * count, dtype=backend.torch.uint8, device=backend.device)
    grid = (-(-count // VECTOR_BLOCK),)
    return lambda: kernels.dropout_masks[grid](out, count, SEED, KEPT, BLOCK=VECTOR_BLOCK)


def _one_by_one(backend: Backend, case: Case) -> Callable[[], Any]:
    kernels, count = _kernels(), case.dim("elements")
    x = random(backend, (count,), case.dtype)
    given = (x, backend.torch.empty_like(x), count, SEED, KEPT)
    drops, grid = case.variant == "dropout_triton", (-(-count // VECTOR_BLOCK),)
    return lambda: kernels.dropout[grid](*given, BLOCK=VECTOR_BLOCK, DROPS=drops)


def _torch_dropout(backend: Backend, case: Case) -> Callable[[], Any]:
    x = random(backend, (case.dim("elements"),), case.dtype)
    return lambda: backend.torch.native_dropout(x, DROPPED, True)


def _silu_backward(backend: Backend, case: Case) -> Callable[[], Any]:
    x, given = (random(backend, (case.dim("elements"),), case.dtype) for _ in range(2))
    return lambda: backend.torch.ops.aten.silu_backward(given, x)


HISTORY, JOINED_ROWS = 2048, 16
"""Longest of the sequences that are joined with one row each, and rows per program."""


def _concat(backend: Backend, case: Case) -> Callable[[], Any]:
    kernels, torch = _kernels(), backend.torch
    rows = case.dim("elements") // WIDTH
    batch = max(rows // HISTORY, 1)
    lengths = np.full(batch, rows // batch - 1)
    left = random(backend, (int(lengths.sum()), WIDTH), case.dtype)
    right = random(backend, (batch, WIDTH), case.dtype)
    out = torch.empty((len(left) + batch, WIDTH), dtype=left.dtype, device=backend.device)
    offsets = [_offsets(backend, each) for each in (lengths, np.ones(batch, np.int64))]
    grid = (-(-(int(lengths.max()) + 1) // JOINED_ROWS), batch)
    fixed = {"COLS": WIDTH, "ROWS": JOINED_ROWS}
    return lambda: kernels.concat_jagged[grid](left, right, out, *offsets, **fixed)


_VECTORS = {
    **dict.fromkeys((name for name in VECTORS if name.startswith("gated")), _gated),
    "dropout_masks": _masks,
    "dropout_triton": _one_by_one,
    "copy_triton": _one_by_one,
    "dropout": _torch_dropout,
    "silu_backward": _silu_backward,
    "concat_jagged": _concat,
}


def _plane(backend: Backend, case: Case) -> Any:
    return random(backend, (case.dim("rows"), case.dim("cols")), case.dtype)


def _silu(backend: Backend, case: Case) -> Callable[[], Any]:
    x = _plane(backend, case)
    return lambda: backend.torch.nn.functional.silu(x)


def _layer_norm(backend: Backend, case: Case) -> Callable[[], Any]:
    torch, x = backend.torch, _plane(backend, case)
    weight, bias = (torch.ones(x.shape[1:], dtype=x.dtype, device=x.device) for _ in range(2))
    if case.direction == "fwd":
        return lambda: torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias)
    taken = [each.requires_grad_() for each in (x, weight, bias)]
    out = torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias)
    given = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, taken, given, retain_graph=True)


def _sum_rows(backend: Backend, case: Case) -> Callable[[], Any]:
    x = _plane(backend, case)
    return lambda: backend.torch.sum(x, dim=0)


def _cat(backend: Backend, case: Case) -> Callable[[], Any]:
    parts = [_plane(backend, case) for _ in range(case.dim("tensors"))]
    return lambda: backend.torch.cat(parts, dim=0)


def _keys(backend: Backend, count: int, below: int) -> Any:
    torch = backend.torch
    return torch.randint(0, below, (count,), device=backend.device, dtype=torch.int32)


def _sort(backend: Backend, case: Case) -> Callable[[], Any]:
    keys = _keys(backend, case.dim("cols"), ROW_SUMS[0])
    return lambda: backend.torch.sort(keys)


SUMMED_ROWS = 8


def _index_add(backend: Backend, case: Case) -> Callable[[], Any]:
    """By PyTorch, or rows in the order of their sum, which is known already."""
    torch, rows, sums = backend.torch, case.dim("rows"), case.dim("hash_size")
    x, ids = _plane(backend, case), _keys(backend, rows, sums)
    out = torch.zeros((sums, x.shape[1]), dtype=x.dtype, device=backend.device)
    if case.variant != "sorted":
        return lambda: out.index_add_(0, ids, x)
    kernels = _kernels()
    ordered, order = torch.sort(ids)
    bounds = torch.arange(sums + 1, device=backend.device, dtype=torch.int32)
    starts = torch.searchsorted(ordered, bounds)
    given, fixed = (x, order, starts, out), {"COLS": x.shape[1], "ROWS": SUMMED_ROWS}
    return lambda: kernels.add_sorted_rows[sums,](*given, **fixed)


def _index_select(backend: Backend, case: Case) -> Callable[[], Any]:
    table = random(backend, (case.dim("hash_size"), case.dim("cols")), case.dtype)
    ids = _keys(backend, case.dim("rows"), len(table))
    return lambda: backend.torch.index_select(table, 0, ids)


def _mm(backend: Backend, case: Case) -> Callable[[], Any]:
    """`t` in the layout: stored the other way round."""
    sides = ((case.dim("m"), case.dim("k")), (case.dim("k"), case.dim("n")))
    operands = []
    for turned, (rows, cols) in zip(str(case.dims["layout"]), sides, strict=True):
        stored = random(backend, (cols, rows) if turned == "t" else (rows, cols), case.dtype)
        operands.append(stored.t() if turned == "t" else stored)
    return lambda: backend.torch.mm(*operands)


_OPERATORS: dict[str, Callable[[Backend, Case], Callable[[], Any]]] = {
    "silu": _silu,
    "layer_norm": _layer_norm,
    "sum_rows": _sum_rows,
    "cat": _cat,
    "sort": _sort,
    "index_add": _index_add,
    "index_select": _index_select,
    "mm": _mm,
}
