"""`perfmodel fit overheads`: a profile of host overheads from traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import DEFAULT_MAX_GB, MaxMemoryOption, ProfilerOverheadOption, max_bytes
from perfmodel.cli.output import check_writable, working

if TYPE_CHECKING:
    from perfmodel.overheads import Profile


def overheads(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="TRACE...", help="Kineto traces, archives or folders of ranks."),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Where the profile goes (JSON)."),
    ],
    profiler_overhead: ProfilerOverheadOption = 0.0,
    host: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="The CPU that the traces ran on (`perfmodel hardware list`)."),
    ] = None,
    torch: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="VERSION", help="The PyTorch version that the traces ran."),
    ] = None,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """Take the host overheads T1 to T5 of traces, for predictions of what has no trace.

    \b
    Examples:
      perfmodel fit overheads trace.json.gz -o mine.json
      perfmodel fit overheads a.json.gz b.json.gz --profiler-overhead 2 -o mine.json
    """
    limit = max_bytes(max_memory)
    for trace in traces:
        check_writable(output, trace)

    from perfmodel.fit.overheads import fit_overheads

    with working("reading the traces"):
        profile = fit_overheads(
            traces,
            profiler_us_per_event=profiler_overhead,
            hosts=host or (),
            torch_versions=torch or (),
            max_bytes=limit,
        )
    profile.save(output)
    typer.echo(_summary(profile, output))


def _summary(profile: Profile, output: Path) -> str:
    means = ", ".join(
        f"{kind} {statistic.mean_us:.1f} us (n {statistic.count:,})"
        for (kind, op, thread), statistic in profile.rows.items()
        if op is None and thread is None
    )
    return f"{output}: means {means}"
