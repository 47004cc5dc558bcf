"""What the command line does, as functions: a path where a trace goes, values where options go.

`read`, `breakdown`, `predict`, `fit`, `report` and `export` lie with what they are of. A verb calls
these, or the same functions as they do where it also reports its progress. All raise
`PerfmodelError` with one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perfmodel.base.answers import Begin, silent
from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.cost.durations import Kernels
    from perfmodel.explore import Sweep
    from perfmodel.explore.planner import Plan
    from perfmodel.prediction import Prediction
    from perfmodel.prediction.comparison import Comparison
    from perfmodel.prediction.request import Hardware, Settings
    from perfmodel.reporting.difference import Difference
    from perfmodel.trace import Trace
    from perfmodel.validate.evaluate.baseline import Comparison as HeldErrors
    from perfmodel.validate.evaluate.results import Errors
    from perfmodel.workload import Workload


ALL = "all"


def predict_module(
    module: Any,
    inputs: Sequence[Any],
    *,
    hardware: Hardware | Sequence[Hardware],
    train: bool = False,
    optimizer: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    batch: int | None = None,
    mode: str = "eager",
    assume: Mapping[str, float] = MappingProxyType({}),
    kernels: Kernels | None = None,
    training: bool | None = None,
) -> Prediction:
    """Per-call time of a `torch.nn.Module` in memory on each machine.

    Nothing is computed but what sizes depend on: the module is traced under fake tensors, and is
    not changed. `hardware` and `kernels` are as of `predict`; `dtype`, `autocast`, `batch` and
    `assume` as of `perfmodel.ops.read.module.Call`.

    Parameters:
        inputs: what `module` is called with.
        train: its backward pass too, and a step of `optimizer`, where one is named.
        mode: `eager`, `compiled` by Inductor, in CUDA `graphs`, or both (`reduce-overhead`).
        training: the earlier name of `train`.

    Returns: a `Prediction` of one pass.
    Raises: `PerfmodelError` for a call that fails, and for an operator that depends on values which
    nothing computes.
    """
    from perfmodel.ops.read.module import Call, as_run, graph_of_module
    from perfmodel.prediction.run import predict

    is_training = train if training is None else training
    call = Call(is_training, optimizer, dtype, autocast, batch, assume)
    graph = as_run(graph_of_module(module, inputs, call), mode)
    return predict(graph, hardware=hardware, kernels=kernels)


def diff(
    a: str | Path | Trace | Prediction,
    b: str | Path | Trace | Prediction,
    *,
    fail_over: str = "",
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
) -> Difference:
    """What became slower between two traces (as measured) or predictions (or their JSON), and why.

    Of A's slowest rank and the same of B: medians of the steady steps, and the critical path of the
    step closest to the median.

    Parameters:
        fail_over: by how much figures of any rank may grow (`step=5%,comm=10%`).
        max_bytes: a bound for each document that is read.
        steps_by: what marks steps in traces, as of `read`.

    Returns: a `Difference`; `failed` and `held` say what grew by more than it may.
    Raises: `PerfmodelError` for what cannot be read or compared, and for a figure that no side has.
    Example: `perfmodel.diff("demo:", "demo:2rank", fail_over="step=5%").failed`.
    """
    from perfmodel.reporting.difference import difference, parse_limits
    from perfmodel.reporting.sides import side_of

    limits = parse_limits(fail_over)
    before, after = (side_of(each, max_bytes=max_bytes, steps_by=steps_by) for each in (a, b))
    return difference(before, after, limits)


def compare(
    workload: str | Path | Trace | Workload,
    hardware: Hardware,
    designs: str | Sequence[str] = ALL,
    *,
    settings: Settings = (),
    batch: int | None = None,
    nodes: int | None = None,
    train: bool = True,
    rate_per_s: float | None = None,
    p99_ms: float | None = None,
    max_delay_ms: float | None = None,
    usd_per_kwh: float | None = None,
    usd_per_hour: float | None = None,
    overheads: str | None = None,
    plan: str | Path | None = None,
    kernels: Kernels | None = None,
    ladder: bool = False,
) -> Comparison:
    """Co-designs side by side on one workload and one machine: time, energy, cost, memory.

    `nodes`, `train`, `overheads` and `kernels` are as of `predict`.

    Parameters:
        designs: names, combined with `+`.
        settings: of a design (`hotline.hot_mib`), the workload (`workload.training.loss`) or the
            hardware (`node.gpus`).
        batch: samples of all ranks.
        rate_per_s: latency where samples arrive at it, in batches that are full or, under
            `max_delay_ms`, whose oldest sample has waited so long.
        p99_ms: finds the batch that serves the rate within that 99th percentile, or without a rate
            the largest one.
        plan: a file with the layout that all start from.
        ladder: each design's steps one on top of the other, each with its gain.

    Returns: a `Comparison`: a row per design, with a 90 % interval, or why it cannot be.
    Raises: `PerfmodelError` for names and settings that mean nothing here, and where no design can
    be.
    Example: `perfmodel.compare("criteo-kaggle", "dgx-a100-80gb", ["default", "neo"])`.
    """
    from perfmodel.cost.durations import using_kernels
    from perfmodel.designs.composed import PLUS, composed, settings_of
    from perfmodel.hardware import KINDS
    from perfmodel.prediction.compare import compare_designs, with_default
    from perfmodel.prediction.request import as_list, changed_workload, hardware_part
    from perfmodel.prediction.running_cost import Prices
    from perfmodel.prediction.serving import Serving
    from perfmodel.prediction.step import cluster_of

    if train and (p99_ms, max_delay_ms) != (None, None):
        raise UsageError("--p99-ms, --max-delay-ms: they are of inference: add --inference")
    serving = Serving.of(rate_per_s, p99_ms, max_delay_ms)
    names, texts = _names(designs), as_list(settings)
    own = settings_of([text for text in texts if _first(text) not in (*KINDS, "workload")])
    compared = [name.strip() for text in names for name in text.split(PLUS)]
    for name in own:
        if name not in compared:
            raise UsageError(f"--set {name}.…: {name} is not among the designs compared")
    asked = [composed(name, own) for name in names]
    model = changed_workload(workload, texts)
    part = hardware_part(hardware, [text for text in texts if _first(text) in KINDS])
    machine = cluster_of(part, nodes)
    placement = None
    if plan is not None:
        from perfmodel.explore.torchrec import read_plan

        placement = read_plan(plan, model, machine)
    stepped = [design for design in asked if design.designs]
    if ladder and not stepped:
        raise UsageError(f"--ladder: {', '.join(names)}: a ladder is of designs")
    with using_kernels(kernels):
        return compare_designs(
            model,
            machine,
            stepped if ladder else with_default(asked, model),
            batch=batch,
            train=train,
            serving=serving,
            prices=Prices(usd_per_hour, usd_per_kwh),
            overheads=overheads,
            placement=placement,
            ladder=ladder,
        )


def plan(
    workload: str | Path | Trace | Workload,
    hardware: Hardware,
    *,
    settings: Settings = (),
    nodes: int | None = None,
    batch: int | None = None,
    train: bool = True,
    kernels: Kernels | None = None,
    begin: Begin = silent,
) -> Plan:
    """Where each table should lie so that a step takes least time: sharding, ranks and memory.

    `nodes`, `batch`, `train` and `kernels` are as of `predict`.

    Parameters:
        settings: of the workload (`workload.training.loss`) or the hardware (`node.gpus`).
        begin: gets the search, and each layout before it is scheduled, with how many are done and
            how many there are at most.

    Returns: a `Plan`; its `deployment` is what `predict` takes.
    Raises: `PerfmodelError` for hardware that holds no tables, and where memory holds no layout.
    Example: `perfmodel.plan("criteo-kaggle", "dgx-a100-80gb").to_frame()`.
    """
    from perfmodel.cost.durations import using_kernels
    from perfmodel.designs import deployment_of
    from perfmodel.explore.planner import plan_deployment
    from perfmodel.prediction import request
    from perfmodel.prediction.step import cluster_of

    texts = request.as_list(settings)
    part = request.hardware_part(hardware, request.machine_settings(texts))
    model = request.changed_workload(workload, texts)
    deployment = deployment_of(model, cluster_of(part, nodes), batch, train=train)
    with using_kernels(kernels):
        return plan_deployment(deployment, begin=begin)


def sweep(
    spec: str | Path | Mapping[str, Any], *, objective: str | None = None, workers: int = 0
) -> Sweep:
    """All points of a space of machines, workloads, designs and their figures.

    Parameters:
        spec: a TOML file, or a mapping with what would stand in it, which may hold a trace, a
            workload or a machine itself where a name would stand.
        objective: names, separated by commas, in the place of the objectives of `spec`.
        workers: processes that share the points.

    Returns: a `Sweep`: its `frame` has a row per point, `best()` and `front()` give rows of it.
    Raises: `PerfmodelError` for an axis that names nothing, and where no point has figures.
    Example: `perfmodel.sweep({"workload": "criteo-kaggle", "hardware": "dgx-h100", "axes":
    {"batch": [1024, 4096]}})`.
    """
    from perfmodel import explore

    return explore.sweep(explore.load_spec(spec, objective), workers=workers)


def evaluate(
    *paths: str | Path,
    strict: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
    begin: Begin = silent,
) -> Errors:
    """How far predictions are from what was measured in traces.

    A replay has seen the step's own durations; all other errors are of what was left out, or from
    shapes alone.

    Parameters:
        paths: traces, or folders of them; without any, the folder `traces` here and the demo.
        strict: refuses what else would be left out with a warning.
        max_bytes: a bound for each document that is read.
        steps_by: what marks steps in traces, as of `read`.
        begin: gets each job's name, its position and how many there are.

    Returns: `Errors`; `to_frame()` has a row per trace, rank and figure.
    Raises: `PerfmodelError` where there is nothing to evaluate.
    Example: `perfmodel.evaluate("demo:2rank").to_frame()`.
    """
    from perfmodel.validate.evaluate.jobs import demo_job, evaluate_jobs, find_jobs

    folder = Path("traces")
    given = list(paths) or ([folder] if folder.is_dir() else [])
    jobs = find_jobs(given, max_bytes=max_bytes)
    if not paths:
        jobs.insert(0, demo_job())
    return evaluate_jobs(jobs, strict=strict, max_bytes=max_bytes, steps_by=steps_by, begin=begin)


def check(baseline: str | Path, *paths: str | Path, tolerance_frac: float = 0.05) -> HeldErrors:
    """The errors of `evaluate(*paths)` against those that the file `baseline` holds.

    Returns: what became better or worse; `passed` says whether nothing did by more than
    `tolerance_frac`.
    Raises: `PerfmodelError` for a baseline that cannot be read, and as of `evaluate`.
    """
    from perfmodel.validate.evaluate.baseline import check_tolerance, read_baseline
    from perfmodel.validate.evaluate.baseline import compare as held_against

    check_tolerance(tolerance_frac)
    rows = read_baseline(Path(baseline))
    return held_against(rows, evaluate(*paths), tolerance_frac=tolerance_frac)


def _names(designs: str | Sequence[str]) -> list[str]:
    """What was asked for, one by one."""
    from perfmodel.designs import DESIGNS

    if designs == ALL:
        return list(DESIGNS)
    given = designs.split(",") if isinstance(designs, str) else designs
    names = [name.strip() for name in given if name.strip()]
    if not names:
        raise UsageError(
            "--designs: name one or more (`perfmodel compare --designs list` lists them)"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--designs: {twice[0]} comes twice")
    return names


def _first(text: str) -> str:
    return text.split(".", 1)[0].strip()
