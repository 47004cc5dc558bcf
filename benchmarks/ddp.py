"""What `DistributedDataParallel` costs a rank beside its collectives: per module and parameter.

`python benchmarks/ddp.py`; needs PyTorch. A group of one rank, so that no other is waited for:
forward and backward of narrow layers with DDP and without, in turns; CPU time of the thread, the
10th percentile of each, and least squares over the cases.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

WIDTH, BATCH, ROUNDS = 16, 8, 450
CASES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (4, 2), (1, 16))
"""Modules, and layers of each."""


def step_of(modules: int, layers: int, wrapped: bool) -> Callable[[], None]:
    """A forward and backward pass."""
    made = [
        torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        for _ in range(modules)
    ]
    held = [torch.nn.parallel.DistributedDataParallel(each) if wrapped else each for each in made]
    parameters = [parameter for each in held for parameter in each.parameters()]
    given = torch.rand(BATCH, WIDTH)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        values = given
        for each in held:
            values = each(values)
        values.sum().backward()

    return step


def main() -> int:
    """Measure, and print what DDP adds to each case and in all."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29518"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=0, world_size=1)
    steps = {
        (case, wrapped): step_of(*case, wrapped) for case in CASES for wrapped in (False, True)
    }
    taken: dict[tuple[tuple[int, int], bool], list[float]] = {key: [] for key in steps}
    for number in range(ROUNDS):
        for key, step in steps.items():
            before_ns = time.thread_time_ns()
            step()
            if number >= ROUNDS // 10:
                taken[key].append((time.thread_time_ns() - before_ns) / 1e3)
    low = {key: float(np.quantile(times, 0.1)) for key, times in taken.items()}
    added = [low[case, True] - low[case, False] for case in CASES]
    for (modules, layers), us in zip(CASES, added, strict=True):
        print(f"{modules} modules of {layers} layers: {us:6.1f} us")
    terms = np.array([(1, modules, 2 * modules * layers) for modules, layers in CASES], float)
    each = np.linalg.lstsq(terms, np.array(added), rcond=None)[0]
    print("{:.1f} us, {:.1f} us a module, {:.1f} us a parameter".format(*each))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
