"""Draws what Hotline and SmartNIC gain over skew, batch, memory and engine rate, and what binds.

`python tests/docs/pictures.py gains` writes `hotline_gains.png` and `smartnic_gains.png` of the
docs, and prints every point: setting, gain, bottleneck with its share of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.baselines import Hybrid
from perfmodel.designs.popular_samples import Hotline
from perfmodel.designs.smartnic import SmartNic
from perfmodel.hardware import Cluster, Node, cluster, load, node
from perfmodel.hardware.settings import with_settings
from perfmodel.prediction import predict
from perfmodel.prediction.compare import fastest
from perfmodel.prediction.types import Result
from perfmodel.workload import load_workload

Point = tuple[float, float, str]
"""A setting, how many times as fast, what binds the design's step."""
Panel = tuple[str, bool, Mapping[str, list[Point]]]
"""Axis, whether it is logarithmic, points by curve."""
MARKERS = {
    "host": "o",
    "compute": "s",
    "accelerator": "^",
    "network": "D",
    "nic": "v",
    "host memory": "P",
}
SERVER = cluster("hotline-server")


def bottleneck(result: Result) -> str:
    """What most of the step waits for."""
    bound = result.bound_by or {}
    return max(bound, key=lambda name: bound[name])


def points(values: Iterable[float], step: Callable[[float], tuple[Result, Result]]) -> list[Point]:
    """Of every value, what `step` (without the design, with it) gives."""
    found = []
    for value in values:
        before, after = step(value)
        gain = before.step_us / after.step_us
        found.append((value, gain, bottleneck(after)))
        bound = (after.bound_by or {})[found[-1][2]] / after.step_us
        print(f"{value:>10g} {gain:6.2f} {found[-1][2]} {bound:.0%}", flush=True)
    return found


def hotline(
    *, batch: float = 65_536, alpha: float = 1.05, hot_mib: float = 512, engines: float = 64
) -> tuple[Result, Result]:
    """RM3 of Hotline with the best software for hosts, and under Hotline: batches parted by kind or
    as they come, whichever is faster."""
    workload = load_workload("hotline-rm3").with_(table__alpha=alpha)
    machine = with_settings(SERVER, [f"accelerator.engines={engines:.0f}"])
    start = deployment_of(workload, machine, int(batch))
    ways: tuple[Any, ...] = ("whole_batches", "as_they_come")
    found = [
        predict(Hotline(hot_mib=hot_mib, launches=way).apply(start)).results[0] for way in ways
    ]
    return _hybrid(batch, alpha), min(found, key=lambda each: each.step_us)


@cache
def _hybrid(batch: float, alpha: float) -> Result:
    """Without the design, whatever engines and hot rows it would have."""
    start = deployment_of(
        load_workload("hotline-rm3").with_(table__alpha=alpha), SERVER, int(batch)
    )
    return predict(Hybrid().apply(start)).results[0]


def smartnic(
    *,
    batch: float = 512,
    alpha: float = 1.09,
    cache_gib: float = 4,
    engine: float = 1_000,
) -> tuple[Result, Result]:
    """Inference of the SmartNIC model, one lookup per table, on 16 nodes with an A100 each."""
    workload = load_workload("smartnic-rm").with_(table__pooling=1, table__alpha=alpha)
    nodes = nodes_with(replace(load("u280"), engine_rows_per_us=engine))  # type: ignore[type-var]
    start = deployment_of(workload, nodes, int(batch) * 16, train=False)
    return plain_and(SmartNic(cache_gib=cache_gib), start)


def nodes_with(nic: Any) -> Cluster:
    """16 nodes of one device and one adapter."""
    one: Node = replace(node("a100-sxm-40gb"), gpus=1, nics=1, nic=nic)
    return cluster(one, 16)


def plain_and(design: SmartNic, start: Deployment) -> tuple[Result, Result]:
    """Without and with `design`, as it is compared."""
    return predict(start).results[0], fastest(design, start)[1].results[0]


def hotline_panels() -> list[Panel]:
    """Skew, batch, hot rows, engines."""
    batches, small = (2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072), 4_096
    skew = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
    return [
        (
            "exponent of Zipf",
            False,
            {
                f"batch {batch:,}": points(skew, lambda x, b=batch: hotline(alpha=x, batch=b))  # type: ignore[misc]
                for batch in (small, 65_536)
            },
        ),
        ("batch", True, {"exponent 1.05": points(batches, lambda x: hotline(batch=x))}),
        (
            "hot rows, MiB",
            True,
            {"batch 65,536": points((1, 4, 16, 64, 256, 1024), lambda x: hotline(hot_mib=x))},
        ),
        (
            "gather engines",
            True,
            {"batch 65,536": points((1, 2, 4, 8, 16, 32, 64, 128), lambda x: hotline(engines=x))},
        ),
    ]


def smartnic_panels() -> list[Panel]:
    """Skew, batch, cache, engine rate."""
    axes: tuple[tuple[str, str, bool, tuple[float, ...]], ...] = (
        ("alpha", "exponent of Zipf", False, (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)),
        ("batch", "samples per rank", True, (64, 256, 1024, 4096)),
        ("cache_gib", "GiB of rows per adapter", True, (1 / 16, 1 / 4, 1, 4)),
        ("engine", "rows per microsecond", True, (10, 30, 100, 300, 1_000, 3_000)),
    )
    return [
        (
            label,
            is_log,
            {"whole tables": points(values, lambda x, k=key: smartnic(**{k: x}))},  # type: ignore[misc]
        )
        for key, label, is_log, values in axes
    ]


def draw(axes: Axes, panel: Panel) -> None:
    """One panel: curves, and what binds as the mark of each point."""
    label, is_log, curves = panel
    for name, found in curves.items():
        x, y, bound = zip(*found, strict=True)
        (line,) = axes.plot(x, y, label=name, linewidth=1.2)
        for at, gain, what in zip(x, y, bound, strict=True):
            mark = MARKERS.get(what, "x")
            axes.plot(at, gain, mark, color=line.get_color(), markersize=6)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_xlabel(label)
    axes.set_ylim(0, 1.12 * max(gain for found in curves.values() for _, gain, _ in found))
    if is_log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.legend(frameon=False, fontsize=8)


def drawn(panels: list[Panel], title: str) -> Figure:
    """All panels side by side."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    for axes, panel in zip(rows.flat, panels, strict=True):
        draw(axes, panel)
    for axes in rows[:, 0]:
        axes.set_ylabel("times as fast")
    seen = {what for *_, curves in panels for found in curves.values() for *_, what in found}
    marks = [
        plt.Line2D([], [], marker=MARKERS.get(what, "x"), color="0.3", linestyle="", label=what)
        for what in sorted(seen)
    ]
    figure.legend(
        handles=marks, loc="outside lower center", ncols=6, frameon=False, title="bound by"
    )
    figure.suptitle(title, fontsize=11)
    return figure


def hotline_gains() -> Figure:
    title = "Hotline over one fused lookup on the host (RM3, four V100)"
    return drawn(hotline_panels(), title)


def smartnic_gains() -> Figure:
    title = "SmartNIC over the same nodes without rows in adapters (16 A100, inference)"
    return drawn(smartnic_panels(), title)
