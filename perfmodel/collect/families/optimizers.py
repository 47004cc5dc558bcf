"""Optimizer steps over many tensors: one loop over them, `foreach`, or fused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.shapes import log_points

POINTS = 60
RANGES = {"tensors": (1, 200), "elements": (16, 50_000_000)}
DLRM_LIKE = ((16, 500_000), (12, 100_000), (148, 600_000))
VARIANTS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
STATES = {"SGD": 0, "Adagrad": 1, "Adam": 2, "AdamW": 2}
"""Per optimizer of `torch.optim`: state tensors per parameter."""


def optimizer_cases(scope: Scope) -> Iterator[Case]:
    """Every optimizer in every variant; one that this PyTorch lacks is skipped when it is made."""
    anchors = [dict(zip(RANGES, shape, strict=False)) for shape in DLRM_LIKE]
    for dims in [*anchors, *islice(log_points(RANGES), POINTS)]:
        for name, states in STATES.items():
            for variant in VARIANTS:
                parameters = dims["tensors"] * dims["elements"]
                size = DTYPE_BYTES["fp32"] * parameters * (2 + states)
                if size <= scope.max_bytes:
                    op = f"optimizer_{name.lower()}"
                    yield Case(op, "fp32", dict(dims), "update", variant, size)


def prepare_optimizer(backend: Backend, case: Case) -> Prepared:
    """One step of the optimizer of `case`; its states exist already."""
    name = next(name for name in STATES if case.op == f"optimizer_{name.lower()}")
    parameters = []
    for _ in range(case.dim("tensors")):
        parameter = random(backend, (case.dim("elements"),), case.dtype).requires_grad_()
        parameter.grad = random(backend, (case.dim("elements"),), case.dtype)
        parameters.append(parameter)
    optimizer = getattr(backend.torch.optim, name)(parameters, lr=1e-6, **VARIANTS[case.variant])
    optimizer.step()
    return Prepared(optimizer.step)


FAMILIES.register("optimizers")(Family(optimizer_cases, prepare_optimizer))
