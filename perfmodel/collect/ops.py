"""`collect ops`: every ATen operator inside real training steps, timed without the profiler.

A `TorchDispatchMode` sees each operator below autograd, in forward, backward (its thread too: the
mode goes with autograd's state) and optimizer. Composite operators appear as their parts; what a
kernel calls inside is not seen, so every operator seen is an outermost one.

Autograd takes a sparse gradient as it is only where nothing else refers to its parts; a mode that
has seen them makes it clone the gradient. Around that moment the mode is therefore left.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.units import BYTES_PER_GB, NS_PER_US
from perfmodel.collect.backend import device_name, open_backend
from perfmodel.collect.configurations import DIMS, FIGURES, Samples, calibration_configs, dims_of
from perfmodel.collect.models import Ranks, Training
from perfmodel.collect.models.dlrm import DlrmConfig, read_configs, train_dlrm
from perfmodel.collect.runs import Run, add_common, count
from perfmodel.collect.timing import LOW_QUANTILE, time_step, write_table

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


def meter_mode() -> Any:
    """A mode that notes each operator in `.operators`, and the clock before and after it (ns).

    Only integers and operators are kept, so that the garbage collector has nothing to do.
    """
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
    read = time.perf_counter_ns

    class Meter(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.operators: list[Any] = []
            self.readings: list[int] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if kwargs is None:
                kwargs = {}
            before = read()
            result = func(*args, **kwargs)
            after = read()
            self.operators.append(func)
            self.readings.append(before)
            self.readings.append(after)
            return result

    return Meter()


def describe_mode(torch: Any) -> Any:
    """A mode that notes what each operator is (`.seen`), and the parameters (`.leaves`).

    It is slow, so never timed.
    """
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Describe(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[dict[str, Any]] = []
            self.leaves: dict[int, Any] = {}
            self._phase = FORWARD

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            described = _inputs(torch, given)
            for tensor in tensors_of(torch, given.values()):
                if tensor.requires_grad and tensor.is_leaf:
                    self.leaves[id(tensor)] = tensor
            result = func(*args, **(kwargs or {}))
            node = torch._C._current_autograd_node()
            if node is not None:
                self._phase = BACKWARD
            elif self._phase == BACKWARD:
                self._phase = OPTIMIZER
            self.seen.append(
                {
                    "op": func.name(),
                    "phase": self._phase,
                    "node": "" if node is None else str(node.name()).rpartition("::")[2],
                    **described,
                    "output_shapes": [list(tensor.shape) for tensor in tensors_of(torch, [result])],
                }
            )
            return result

    return Describe()


def tensors_of(torch: Any, values: Any) -> Iterator[Any]:
    """Every tensor among `values` and in lists and dictionaries among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from tensors_of(torch, value.values() if isinstance(value, dict) else value)


def _inputs(torch: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Shapes, dtypes and layouts of the tensors in `given`, its scalars, and distinct indices."""
    tensors = {n: v for n, v in given.items() if any(True for _ in tensors_of(torch, [v]))}
    scalars = {
        name: _plain(value)
        for name, value in given.items()
        if name not in tensors and value is not None
    }
    flat = tensors_of(torch, tensors.values())
    sparse = [tensor for tensor in flat if tensor.layout == torch.sparse_coo]
    if sparse:
        scalars["nnz"] = sum(int(tensor._nnz()) for tensor in sparse)
    indices = [tensor._indices() for tensor in sparse]
    indices += [tensors[name] for name in ("indices", "index") if name in tensors]
    unique_rows = sum(
        len(torch.unique(each))
        for each in tensors_of(torch, indices)
        if each.dtype in (torch.int64, torch.int32)
    )

    def of_each(describe: Callable[[Any], Any]) -> list[Any]:
        def nested(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return describe(value)
            return [nested(item) for item in value if item is not None]

        return [nested(value) for value in tensors.values()]

    return {
        "input_shapes": of_each(lambda tensor: list(tensor.shape)),
        "input_dtypes": of_each(lambda tensor: _plain(tensor.dtype)),
        "input_layouts": of_each(lambda tensor: _layout(torch, tensor)),
        "scalars": scalars,
        "unique_rows": unique_rows or None,
    }


def _layout(torch: Any, tensor: Any) -> str:
    """`contiguous`, `transposed` (the last two dims), `strided`, or the name of its layout."""
    if tensor.layout != torch.strided:
        return str(_plain(tensor.layout))
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() > 1 and tensor.transpose(-1, -2).is_contiguous():
        return "transposed"
    return "strided"


def _plain(value: Any) -> Any:
    """`value` as JSON has it."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value).removeprefix("torch.")


@contextmanager
def hidden_accumulation(torch: Any, leaves: Iterable[Any]) -> Iterator[None]:
    """Inside, modes do not see how those of `leaves` with a sparse gradient accumulate it."""
    exclude, python_key = torch._C._dispatch_tls_set_dispatch_key_excluded, torch._C.DispatchKey
    handles: list[Any] = []
    for leaf in leaves:
        if leaf.grad is not None and leaf.grad.layout == torch.sparse_coo:
            handles.append(leaf.register_hook(lambda _: exclude(python_key.Python, True)))
            after = leaf.register_post_accumulate_grad_hook
            handles.append(after(lambda _: exclude(python_key.Python, False)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        if handles:
            exclude(python_key.Python, False)


FIRST_WARM_UP = 4
"""Steps in which a new model first allocates memory and its libraries choose kernels."""
TARGET_US, LEAST, MOST = 40_000.0, 3, 8
"""Of steps of each sort of a round, with and without the meter: as many as fit, within limits."""
MEMORY_SHARE = 0.75
"""Of what is free, for models that stay side by side: other programs grow, too."""
MAX_ROUNDS = 200
TIMINGS = {"cpu": "dispatch_mode", "cuda": "dispatch_mode_host"}
PER_MINUTE = 24
"""Models: 2.5 seconds for each, all its rounds together."""


class Turns:
    """The models of `configs`, built when first due and trained in turns, in some steps of a round
    with a mode that times each operator; `run.skipped` says why one is not.

    Rounds over all models spread slow drifts evenly.
    """

    def __init__(self, run: Run, configs: Sequence[DlrmConfig]) -> None:
        self.run, self.backend, self.configs = run, run.backend, configs
        self.samples: dict[str, Samples] = {}
        self._left_bytes = MEMORY_SHARE * run.backend.free_bytes()
        self._trainings: dict[str, Training] = {}
        self._leaves: dict[str, list[Any]] = {}
        self._number = 0

    def take(self, most_rounds: int) -> None:
        """A few steps of every model per round, until the time or the rounds are used up."""
        for _ in range(most_rounds):
            for config in self.configs:
                if self.run.is_over:
                    return
                training = self._training(config)
                if training is not None:
                    self.measure(config.name, training)
            if not self._trainings:
                return

    def measure(self, name: str, training: Training) -> None:
        """One round of a model that is built and warm: plain steps, and as many metered ones; those
        with other operators do not count. It is kept when it is whole."""
        taken = self.samples[name]
        steps = min(max(int(TARGET_US / max(self._step(training), 1.0)), LEAST), MOST)
        plain_us = [round(self._step(training), 1) for _ in range(steps)]
        operators = [op["op"] for op in taken.signature]
        with hidden_accumulation(self.backend.torch, self._leaves[name]):
            for _ in range(steps):
                meter = meter_mode()
                with meter:
                    total_us = self._step(training)
                if [func.name() for func in meter.operators] == operators:
                    before_ns, after_ns = np.asarray(meter.readings, np.int64).reshape(-1, 2).T
                    taken.metered_us.append(total_us)
                    taken.op_us.append((after_ns - before_ns) / NS_PER_US)
        taken.rounds_us.append(plain_us)

    def rows(self) -> list[dict[str, Any]]:
        """A row per model with rounds: its dims and its figures."""
        setting = {
            "device": device_name(self.backend),
            "ranks": 1,
            "threads_per_rank": self.backend.threads,
        }
        return [
            {"model": "dlrm", **setting, **dims_of(each), **self.samples[each.name].figures()}
            for each in self.configs
            if each.name in self.samples and self.samples[each.name].rounds_us
        ]

    def _step(self, training: Training) -> float:
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def _training(self, config: DlrmConfig) -> Training | None:
        """The model of `config`, warmed up, its operators noted; `None`, and a note, where it does
        not fit."""
        name, skipped = config.name, self.run.skipped
        if name in self._trainings or name in skipped:
            return self._trainings.get(name)
        if config.held_bytes >= min(self._left_bytes, self.backend.free_bytes()):
            skipped[name] = f"needs {config.held_bytes / BYTES_PER_GB:.1f} GB"
            return None
        self._left_bytes -= config.held_bytes
        try:
            training = train_dlrm(self.backend, Ranks(), config)
            for _ in range(FIRST_WARM_UP):
                self._step(training)
            self._leaves[name] = leaves = list(self._described(training, []).leaves.values())
            self.samples[name] = Samples(signature=self._described(training, leaves).seen)
        except (RuntimeError, MemoryError) as error:
            if not self.backend.out_of_memory(error):
                raise
            skipped[name] = "out of memory"
            return None
        self._trainings[name] = training
        return training

    def _described(self, training: Training, leaves: list[Any]) -> Any:
        """The mode that has seen the next step."""
        describe = describe_mode(self.backend.torch)
        with hidden_accumulation(self.backend.torch, leaves), describe:
            self._step(training)
        return describe


IDENTITY = (
    *("configuration", "op", "phase", "node", "input_shapes", "input_dtypes", "input_layouts"),
    *("output_shapes", "scalars"),
)
OP_COLUMNS = (
    *IDENTITY,
    *("count", "unique_rows", "device", "timing", "duration_us", "median_us", "p90_us", "repeats"),
)
STEP_COLUMNS = (
    *("model", *DIMS, *FIGURES, "ops_per_step", "metered_steps"),
    *("metered_p10_us", "ops_sum_p10_us"),
)


def op_rows(name: str, taken: Samples, device: str, timing: str) -> list[dict[str, Any]]:
    """One row per distinct operator of configuration `name`: means over its `count` places.

    A place's duration is a low quantile over the steps, so that count times duration sums up.
    """
    if not taken.op_us:
        return []
    quantiles = np.quantile(taken.op_us, [LOW_QUANTILE, 0.5, 0.9], axis=0)
    measured = {"device": device, "timing": timing, "repeats": len(taken.op_us)}
    places_of: dict[str, list[int]] = {}
    for place, op in enumerate(taken.signature):
        key = json.dumps([op.get(column) for column in IDENTITY])
        places_of.setdefault(key, []).append(place)
    rows = []
    for places in places_of.values():
        unique = [taken.signature[place]["unique_rows"] for place in places]
        times = dict(
            zip(("duration_us", "median_us", "p90_us"), quantiles[:, places].mean(1), strict=True)
        )
        about = {
            "configuration": name,
            "count": len(places),
            "unique_rows": round(float(np.mean(unique)), 1) if any(unique) else None,
        }
        rows.append(taken.signature[places[0]] | about | times | measured)
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "ops", 5.0)
    parser.add_argument(
        "--configurations",
        type=count,
        help=f"how many models to train in turns (default: {PER_MINUTE} per minute)",
    )
    parser.add_argument("--configs", type=Path, help="JSON file of DLRMs to train instead")


def run(arguments: argparse.Namespace) -> None:
    wanted = arguments.configurations or max(1, round(PER_MINUTE * arguments.minutes))
    configs = tuple(islice(calibration_configs(), wanted))
    if arguments.configs:
        configs = read_configs(arguments.configs)
    current = Run("ops", arguments, open_backend(arguments.device))
    turns = Turns(current, configs)
    try:
        turns.take(MAX_ROUNDS)
    finally:
        steps, device = turns.rows(), device_name(current.backend)
        timing = TIMINGS[current.backend.kind]
        rows = [
            row
            for step in steps
            for row in op_rows(step["name"], turns.samples[step["name"]], device, timing)
        ]
        write_table(current.path("_steps.csv"), STEP_COLUMNS, steps)
        current.write(
            OP_COLUMNS,
            rows,
            f"operators of {len(steps)} configurations",
            ".csv.gz",
            configurations_planned=len(configs),
            configurations=len(steps),
            rounds=sum(step["rounds"] for step in steps),
        )
