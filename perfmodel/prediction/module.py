"""`predict_module`: a PyTorch module in memory, on machines that are not here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.ops.read.program import EAGER, Call, as_run
from perfmodel.prediction.run import Hardware, predict
from perfmodel.prediction.types import Prediction


def predict_module(
    module: Any,
    inputs: Sequence[Any],
    *,
    hardware: Hardware | Sequence[Hardware],
    training: bool = False,
    optimizer: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    batch: int | None = None,
    mode: str = EAGER,
) -> Prediction:
    """Per-call time of a `torch.nn.Module` in memory, called with `inputs`, on each machine.

    Nothing is computed: the module is traced under fake tensors, and is not changed. `training`,
    `optimizer`, `dtype`, `autocast` and `batch` as of `perfmodel.ops.read.program.Call`; `mode` is
    `eager`, `compiled` by Inductor, or captured in CUDA `graphs`. Raises `PerfmodelError` with
    one line for a call that fails, and for an operator that depends on values.
    """
    from perfmodel.ops.read.module import graph_of_module

    call = Call(training, optimizer, dtype, autocast, batch)
    return predict(as_run(graph_of_module(module, inputs, call), mode), hardware=hardware)
