"""What a run found, as text."""

from __future__ import annotations

from typing import Any


def show(answer: dict[str, Any], *, in_process: bool) -> str:
    """The whole run as text."""
    machine = answer["machine"]
    parts = [
        f"Python {answer['python']}, {machine['system']} {machine['architecture']}, "
        f"{machine['cpus']} CPUs, load {machine['load_before']:.1f} before and "
        f"{machine['load_after']:.1f} after; median of {answer['repeats']} interleaved runs; "
        f"critical path of {answer['steps']} profiler step{'s' * (answer['steps'] == 'all')} "
        "(peers), of all (ours)."
    ]
    for trace in answer["traces"]:
        parts += trace_parts(trace, in_process=in_process)
    shown = answer["help"]
    parts.append(
        f"\n{'holds ' if shown['holds'] else 'FAILS '} perfmodel --help: "
        f"{number(shown['wall_s'], 3)} s (wanted {shown['limit']}) {shown['note']}".rstrip()
    )
    return "\n".join(parts)


def trace_parts(trace: dict[str, Any], *, in_process: bool) -> list[str]:
    """One trace: times, notes, ratios, stages and promises."""
    parts = [
        f"\n== {trace['trace']} ({trace['bytes'] / 1e6:.1f} MB on disk)\n",
        times_table(trace["rows"]),
    ]
    notes = [f"  {row['title']}: {row['note']}" for row in trace["rows"] if row["note"]]
    if notes:
        parts.append("\n".join(notes))
    if any(row["kind"] == "scaled" for row in trace["rows"]):
        scaling = trace["scaling"]
        parts.append(
            f"  The scaling puts HTA's own wall time at {scaling['hta_wall_scaled_s']:.2f} s; "
            f"measured {scaling['hta_wall_measured_s']:.2f} s."
        )
    parts.append("\n" + ratios_table(trace["ratios"], "wall", "wall time"))
    if in_process:
        parts.append("\n" + ratios_table(trace["ratios"], "work", "in-process time"))
        parts.append("\nstages, in-process seconds")
        for row in trace["rows"]:
            if row.get("stages"):
                split = ", ".join(f"{k} {v:.3f}" for k, v in row["stages"].items())
                parts.append(f"  {row['title']}: {split}")
    if trace["checks"]:
        parts.append("")
    for found in trace["checks"]:
        parts.append(
            f"  {'holds ' if found['holds'] else 'FAILS '} {found['what']}: "
            f"{number(found['value'])} (wanted {found['limit']}, {found['kind']})"
        )
    return parts


def times_table(rows: list[dict[str, Any]]) -> str:
    """Times and memory of every tool."""
    header = ["tool", "wall s", "min..max", "in-process s", "import s", "CPU s", "peak MiB"]
    lines = []
    for row in rows:
        if row["kind"] == "failed":
            lines.append([row["title"], "failed", "-", "-", "-", "-", "-"])
            continue
        has_range = "wall_min_s" in row
        lines.append(
            [
                row["title"],
                number(row["wall_s"]),
                f"{row['wall_min_s']:.2f}..{row['wall_max_s']:.2f}" if has_range else "-",
                number(row["work_s"]),
                number(row["import_s"]),
                number(row["cpu_s"]),
                number(row["rss_mib"], 0),
            ]
        )
    return table(header, lines)


def ratios_table(ratios: list[dict[str, Any]], key: str, title: str) -> str:
    """Every tool against ours and the floor, in `key`: `wall` or `work`."""
    header = [
        f"ratios, {title}",
        "tool/ours",
        "ours/tool",
        "tool/floor",
        "CPU tool/ours",
        "memory tool/ours",
        "memory ours/tool",
        "memory tool/floor",
    ]
    lines = [
        [
            row["title"],
            number(row[f"{key}_over_ours"]),
            number(row[f"{key}_ours_over"], 3),
            number(row[f"{key}_over_floor"], 1),
            number(row["cpu_over_ours"]),
            number(row["memory_over_ours"]),
            number(row["memory_ours_over"]),
            number(row["memory_over_floor"]),
        ]
        for row in ratios
    ]
    return table(header, lines)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A plain table: first column left, the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table: first column left, the others right."""
    rule = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
