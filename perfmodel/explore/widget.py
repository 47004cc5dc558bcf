"""An explorer for notebooks: a control per axis of a sweep, and live the steps that it leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.registry import library
from perfmodel.base.schema import read_toml
from perfmodel.base.units import US_PER_MS, human_us
from perfmodel.cost.durations import using_kernels
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.evaluate import evaluation_of
from perfmodel.explore.spec import BATCH, MAX_BYTES, load_spec
from perfmodel.prediction.types import Result
from perfmodel.trace import Trace
from perfmodel.workload import Workload

USUAL_AXES: dict[str, list[Any]] = {
    BATCH: [4096, 8192, 16384, 32768, 65536],
    "hardware": ["dgx-h100", "dgx-a100-80gb", "hgx-h200", "hgx-b200", "hgx-mi300x"],
    "nodes": [1, 2, 4, 8],
    "node.nic": ["connectx-7", "connectx-6", "connectx-8"],
    "design": ["default", "neo", "software_cache"],
    "software_cache.cache_frac": [0.02, 0.05, 0.1, 0.2, 0.5],
    "workload.implementation.precision": ["fp16", "bf16", "fp32"],
}
"""Of a model that is given without axes."""


def explorer(source: Any, across: str | None = None) -> Any:
    """As `perfmodel.explore`."""
    widgets = library("ipywidgets")
    is_model = isinstance(source, (str, Path, Workload, Trace))
    if isinstance(source, (str, Path)) and Path(source).suffix == ".toml":
        is_model = "tables" in read_toml(Path(source), MAX_BYTES, UsageError)
    if is_model:
        source = {"workload": source, "axes": USUAL_AXES}
    spec = load_spec(source)
    evaluate, values = evaluation_of(spec), spec.points.values
    along = across or (BATCH if BATCH in values else next(iter(values), BATCH))
    if along not in values:
        raise UsageError(
            f"across {along!r}: expected an axis: {', '.join(values) or 'it has none'}"
        )

    @lru_cache(maxsize=4096)
    def found(*point: Any) -> Result | str:
        try:
            with using_kernels(spec.kernels):
                return evaluate.predicted(dict(zip(values, point, strict=True)))
        except PerfmodelError as error:
            return str(error)

    def control(axis: str) -> Any:
        numbers = all(isinstance(each, (int, float)) for each in values[axis])
        options = [(f"{each:,}" if numbers else str(each), each) for each in values[axis]]
        about = {"options": options, "description": axis.rpartition(".")[2], "tooltip": axis}
        if numbers and len(options) > 1:
            return widgets.SelectionSlider(**about, continuous_update=False)
        return widgets.Dropdown(**about)

    controls = {axis: control(axis) for axis in values}
    picker = widgets.Dropdown(options=list(values), value=along, description="across")
    chart, said = widgets.Image(format="png"), widgets.HTML()
    before: list[Sequence[Result | str]] = []

    def show(change: Mapping[str, Any] | None = None) -> None:
        axis, chosen = picker.value, {name: each.value for name, each in controls.items()}
        curve = [found(*(chosen | {axis: each}).values()) for each in values[axis]]
        if change is not None and change["owner"] is picker:
            before.clear()
        at = list(values[axis]).index(chosen[axis])
        names = [text for text, _ in controls[axis].options]
        chart.value = _drawn(axis, names, at, curve, before[-1:])
        text = one if isinstance(one := curve[at], str) else one.text
        if isinstance(one, Result) and BATCH in chosen and spec.trace is None:
            text += f", {chosen[BATCH] / one.step_us:,.2f} M samples/s"
        said.value = escape(text)
        before[:] = [curve]

    for each in (picker, *controls.values()):
        each.observe(show, "value")
    show()
    knobs = widgets.VBox([picker, *controls.values()])
    return widgets.HBox([knobs, widgets.VBox([chart, said])])


def _drawn(
    axis: str,
    names: Sequence[str],
    at: int,
    curve: Sequence[Result | str],
    before: Sequence[Sequence[Result | str]],
) -> bytes:
    """Steps with their 90 % intervals, the chosen one marked, those before the last change pale."""
    from perfmodel.plot.style import FAINT, FURTHER_COLOURS, panels

    joined = "-" if names[0][:1].isdigit() else "none"
    with panels(6.4, 3.6) as (figure, (axes,)):
        for line, colour in ((before[0] if before else (), FAINT), (curve, FURTHER_COLOURS[0])):
            known = [(x, one) for x, one in enumerate(line) if isinstance(one, Result)]
            if not known:
                continue
            x, y = [x for x, _ in known], np.array([one.step_us for _, one in known])
            ends = [(one.low_us or one.step_us, one.high_us or one.step_us) for _, one in known]
            away = np.abs(np.array(ends).T - y) / US_PER_MS
            axes.errorbar(x, y / US_PER_MS, away, color=colour, marker="o", capsize=3, ls=joined)
        if isinstance(chosen := curve[at], Result):
            axes.plot(at, chosen.step_us / US_PER_MS, "o", ms=11, mfc="none", mec="black")
            axes.set_title(f"{human_us(chosen.step_us)} at {names[at]}")
        axes.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 9 else 0)
        axes.set(xlabel=axis, ylabel="step (ms)", xlim=(-0.5, len(names) - 0.5))
        axes.set_ylim(bottom=0.0)
        content = BytesIO()
        figure.savefig(content, format="png")
        return content.getvalue()
