"""`perfmodel kernel` for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from perfmodel.cli.figures_read import say_assumed
from perfmodel.cli.tables import Times, add, new_table, say, show

_BYTES_PER_MB = 1e6
_FLOP_PER_GFLOP = 1e9


def show_kernel(console: Console, title: str, answers: list[dict[str, Any]]) -> None:
    """One line per device, and below it what each duration is made of."""
    times = Times([answer["high_us"] for answer in answers])
    say(console, title)
    first = answers[0]
    work = (
        f"{first['flop'] / _FLOP_PER_GFLOP:,.3f} GFLOP, reads "
        f"{first['read_bytes'] / _BYTES_PER_MB:,.3f} MB, writes "
        f"{first['written_bytes'] / _BYTES_PER_MB:,.3f} MB"
    )
    say(console, work)
    table = new_table(
        f"Duration ({times.unit})",
        "device",
        "bound by",
        "kernel",
        "low",
        "high",
        "of peak",
        texts=2,
    )
    for answer in answers:
        add(
            table,
            answer["hardware"],
            answer["bound_by"],
            times(answer["duration_us"]),
            times(answer["low_us"]),
            times(answer["high_us"]),
            f"{100 * answer['utilisation_frac']:.1f} %",
        )
    show(console, table)
    for answer in answers:
        terms = ", ".join(f"{name} {value:,.3f}" for name, value in answer["terms"].items())
        why = f"{answer['hardware']}: {answer['model']} ({answer['source']})"
        say(console, f"{why}: {terms}" if terms else why)
        say(console, f"{answer['hardware']}: {answer['formula']}")
        say_assumed(console, answer["hardware"], answer["figures"])


def show_ops(console: Console, ops: list[dict[str, Any]]) -> None:
    """The vocabulary, by family."""
    table = new_table("Ops", "op", "family", "dims", "directions", texts=4)
    for op in sorted(ops, key=lambda op: (op["family"], op["op"])):
        optional = [f"[{name}={value:g}]" for name, value in op["optional"].items()]
        dims = " ".join([*op["dims"], *optional])
        add(table, op["op"], op["family"], dims, " ".join(op["directions"]))
    show(console, table)
