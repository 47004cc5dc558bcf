"""What would help most: the commands that say it, and the list for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.cli.prediction_options import PredictionOptions

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.graph.types import ExecutionGraph
    from perfmodel.prediction.gains import Gain

_WITH_VALUE = {"steps": "--steps", "et": "--et", "max_memory": "--max-memory", "mode": "--mode"}


def command_of(
    graph: ExecutionGraph, trace: str | None, options: PredictionOptions, hardware: Sequence[str]
) -> list[str]:
    """The words of `perfmodel predict` for a trace read with `options` and without what-ifs.

    `--keep-contention` stands where collectives may slow kernels down: what they cost one another
    takes far longer to work out anew than a schedule.
    """
    words = ["perfmodel", "predict", *([trace] if trace is not None else [])]
    for name, option in _WITH_VALUE.items():
        value = getattr(options, name)
        if value != getattr(type(options), name):
            words += [option, str(value)]
    for name in hardware:
        words += ["--hardware", name]
    for text in options.settings or ():
        words += ["--set", text]
    if not hardware and _may_contend(graph):
        words.append("--keep-contention")
    return words


def _may_contend(graph: ExecutionGraph) -> bool:
    from perfmodel.graph.kinds import NodeKind

    return bool((graph.nodes_.kind[graph.on_device] == NodeKind.COLLECTIVE).any())


def show_gains(console: Console, found: Sequence[Gain]) -> None:
    """The list, each line with its command below."""
    from rich.text import Text

    from perfmodel.cli.failures import one_line
    from perfmodel.cli.tables import Times, percent, say

    console.print()
    if not found:
        say(console, "What would help most: no what-if alone gains more than 1 % of the step.")
        return
    console.print("What would help most, each alone, by the schedule", style="bold")
    times = Times(gain.gain_us for gain in found)
    for gain in found:
        saved = f"-{times(gain.gain_us)} {times.unit}, {percent(gain.gain_frac, 1)}"
        console.print(Text(one_line(f"{gain.name}: {saved}: {gain.advice}")))
        console.print(Text(f"    {one_line(gain.command)}"), soft_wrap=True)
