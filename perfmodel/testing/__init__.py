"""For tests of your own: a step that has to stay within a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import US_PER_MS, human_us
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.prediction import Prediction

__all__ = ["assert_step_within"]


def assert_step_within(
    source: Any,
    *,
    hardware: Any,
    ms: float,
    before: str | Path | Prediction | Mapping[str, Any] | None = None,
    **options: Any,
) -> Prediction:
    """The prediction of `source` on `hardware`; fails where its step takes longer than `ms`.

    `source` and `options` are as of `perfmodel.predict`: a trace, a workload, `FILE.py:CLASS`. The
    failure names the interval and the largest causes, and what has changed since `before`: an
    earlier prediction, its answer, or the file that `predict -o` wrote. Raises `AssertionError`,
    and `PerfmodelError` for what cannot be predicted, several machines, and a limit that is none.
    """
    __tracebackhide__ = True
    from perfmodel.prediction.run import predict

    if not ms > 0:
        raise UsageError(f"ms={ms}: expected a limit above 0")
    prediction = predict(source, hardware=hardware, **options)
    if len(prediction.results) > 1:
        raise UsageError(f"hardware: {len(prediction.results)} of them, expected one")
    result = prediction.results[0]
    if result.step_us <= ms * US_PER_MS:
        return prediction
    from perfmodel.reporting.brief import brief, lines_of
    from perfmodel.reporting.difference import difference
    from perfmodel.reporting.sides import side_of

    over_pct = 100 * (result.step_us / (ms * US_PER_MS) - 1)
    lines = [
        f"a step of {prediction.source['trace']} takes {human_us(result.step_us)} on "
        f"{result.hardware}: {over_pct:.1f} % above the limit of {ms:g} ms",
        *lines_of(brief(prediction.to_dict())),
    ]
    if before is not None:
        changed = difference(side_of(before), side_of(prediction))
        lines += [f"since it passed: {changed.verdict}", *changed.moved]
    raise AssertionError("\n  ".join(lines))
