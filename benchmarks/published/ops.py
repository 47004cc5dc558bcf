"""Device time of single operators from their shapes alone against what was measured.

python -m benchmarks.published.ops [--by-op] [--only PATTERN] TRACE|FOLDER...
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from fnmatch import fnmatchcase

import pandas as pd

from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.errors import HardwareError, TraceError
from perfmodel.trace import Trace, read
from perfmodel.validate.evaluate.jobs import find_jobs, shape_times
from perfmodel.validate.evaluate.results import LEFT_OUT, Errors, error_rows

OPS_SCHEMA = "perfmodel.evaluation.ops/1"
_FIGURES = ("gmae_pct", "mape_pct", "median_pct", "bias_pct", "total_pct", "measured_us")
_BY = ("source", "device", "name")


def op_errors(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> Errors:
    """Errors of the rows of `frame` (`source device name predicted_us measured_us`) by the first
    three, the longest first, and of `all` together; see `error_figures`."""
    if not len(frame):
        return Errors(OPS_SCHEMA, [], list(warnings), {"all": None})
    rows = error_rows(frame, _BY, _FIGURES)
    rows.sort(key=lambda row: (row["source"], -row["measured_us"]))
    (whole,) = error_rows(frame.assign(source="all", device="", name="all"), _BY, _FIGURES)
    return Errors(OPS_SCHEMA, rows, list(warnings), {"all": whole})


def ops_of(trace: Trace, *, only: str = "*", by_op: bool = False) -> pd.DataFrame:
    """`shape_times` of the operators whose name matches the pattern `only`; their `name` is that of
    the kernel family, or their own (`by_op`)."""
    times = shape_times(trace)
    if not len(times):
        return times
    times = times[[fnmatchcase(name, only) for name in times["op"]]]
    return times.assign(name=times["op" if by_op else "family"])


def evaluate_ops(
    traces: list[str],
    *,
    only: str = "*",
    by_op: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Errors:
    """Errors per op of `traces` (files or folders) from shapes alone; see `ops_of`.

    Raises `TraceError` for a trace that cannot be read.
    """
    frames, warnings = [pd.DataFrame()], []
    for job in begun(find_jobs(traces, max_bytes=max_bytes), begin, lambda job: job.name):
        trace = read(job.path, max_bytes=max_bytes)
        try:
            frames.append(ops_of(trace, only=only, by_op=by_op).assign(source=job.name))
        except (TraceError, HardwareError) as error:
            warnings.append(f"{LEFT_OUT}{job.name}: {error}")
    return op_errors(pd.concat(frames), warnings)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--by-op", action="store_true")
    parser.add_argument("--only", default="*")
    print(evaluate_ops(**vars(parser.parse_args())).to_frame().to_string(index=False))
