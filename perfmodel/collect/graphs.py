"""CUDA graphs: capture once, replay with one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import Training
from perfmodel.errors import UsageError

WARM_UP_RUNS = 3


def capture_graph(backend: Backend, body: Callable[[], Any]) -> Callable[[], None]:
    """What replays `body`, warmed up on a side stream and captured once.

    Raises `UsageError` where `body` does something that a graph cannot hold.
    """
    cuda = backend.torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            body()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph):
            body()
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"this cannot be captured into a CUDA graph: {reason}") from None
    return lambda: graph.replay()


def with_graph(backend: Backend, training: Training) -> Training:
    """`training` with its compute part replayed from a CUDA graph."""
    if not backend.is_gpu:
        raise UsageError("--cuda-graph needs --device cuda: a CPU has no graphs to launch")
    load, compute = training.load, training.compute
    if load is None or compute is None:
        raise UsageError(
            "--cuda-graph: this model cannot be captured; use --model dlrm "
            "--embedding-update inplace"
        )
    load(0)
    replay = capture_graph(backend, compute)

    def step(number: int) -> None:
        load(number)
        replay()

    return replace(training, step=step, description={**training.description, "cuda_graph": True})
