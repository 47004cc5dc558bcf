"""Does a warning name what was damaged? By kind of damage, the words that do."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MISSING = (
    r"not in the file|no kernel in the file|its launch call in the file|no device operation is|"
    r"sampled or filtered|numbered one after another|begin long after"
)
_TIES = r"launch call|launched earlier|no kernel in the file|(?<!ten )number|no stream"
_TIMES = (
    r"more than ten times|begin (before|within)|overlap|return before|launched earlier|"
    r"numbered later|begin long after|clock|microseconds"
)
_WORDS = {
    _MISSING: "a hole in time, any events missing, calls missing, device operations missing, "
    "launches and their kernels missing, operators missing, steps missing, "
    "the beginning cut off, the end cut off",
    r"of another|numbered (one after|later)|begin before the one before": (
        "a second recording behind, recorded twice"
    ),
    r"microseconds": "all in another unit, device durations in another unit, "
    "durations in another unit, host durations in another unit",
    r"microseconds|clocks differ": "device in another unit",
    r"clock|before their launch call|return before|launched earlier|"
    r"numbered later|begin (before|within|long after)": (
        "clock of one thread off, device clock drifts, device clock jumps, device clock off"
    ),
    _TIES: "correlations of calls, correlations of the device, correlations off by one, "
    "numbers of operators, numbers of host events",
    rf"{_TIES}|{_MISSING}": "arguments gone",
    r"stream": "all on one stream, streams",
    r"no device|several devices": "devices",
    r"thread": "all on one thread, threads of some events",
    rf"category|{_MISSING}": "names, categories",
    _TIMES: "durations of the device, durations of the host, times of the device, "
    "times of the host, times of two events exchanged, times with too few digits",
}
_OF_KIND = {kind: words for words, kinds in _WORDS.items() for kind in kinds.split(", ")}


def is_named(kind: str, warnings: Iterable[str]) -> bool:
    """Whether one of them names damage of this kind."""
    words = _OF_KIND.get(kind, "$^")
    return any(re.search(words, text.split(": ", 1)[-1]) for text in warnings)
