"""`perfmodel kernel`: what one kernel takes on a device, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import LINE, assumed
from perfmodel.cli.options import PACKAGED, KernelOptions
from perfmodel.cli.output import STDOUT, Output
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import Block, Table

if TYPE_CHECKING:
    from perfmodel.hardware import Part
    from perfmodel.ops.rows import Rows


SCHEMA = "perfmodel.kernel/1"
DECIMALS = 4
_TEXTS = ("dtype", "direction", "timing", "framework")
_KERNEL = (
    "hardware=device;bound_by=bound by;duration_us=kernel:us;low_us=low:us;high_us=high:us;"
    "utilisation_frac=of peak:share"
)
MAX_TIMES = 5
"""Terms of a duration that a line names."""


def kernel(
    op: str | None = None,
    settings: list[str] | None = None,
    hardware: list[str] | None = None,
    timed_by: KernelOptions = PACKAGED,
    target: Output = STDOUT,
) -> None:
    if op is None:
        _list(target)
        return
    if not hardware:
        raise UsageError(f"kernel {op}: name the device: --hardware h100-sxm")

    from perfmodel.hardware import load
    from perfmodel.ops.rows import Rows

    rows = Rows.of([_row(op, settings or [])])
    answers = [_answer(rows, load(name)) for name in hardware]
    title = f"{rows.op[0]} {rows.dtype[0]} {rows.direction[0]}: {rows.dims_text()}"
    nested = ("terms", "figures", "coefficients")
    target.write(
        lambda: {"schema": SCHEMA, "op": op, "results": answers},
        lambda: [{k: v for k, v in each.items() if k not in nested} for each in answers],
        lambda: _blocks(title, answers),
    )


def _row(op: str, settings: list[str]) -> dict[str, Any]:
    """The row that `DIM=VALUE` words describe. Raises `UsageError` naming the word."""
    from perfmodel.ops.rows import FRAMEWORKS
    from perfmodel.ops.spec import OPS

    spec = OPS[op]
    known = (*spec.dims, *spec.defaults, *_TEXTS)
    row: dict[str, Any] = {"op": op}
    for word in settings:
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise UsageError(f"kernel {op}: {word!r}: expected NAME=VALUE of {', '.join(known)}")
        if name in row:
            raise UsageError(f"kernel {op}: {name} is given twice")
        try:
            row[name] = value if name in _TEXTS else float(value)
        except ValueError:
            raise UsageError(f"kernel {op}: {word!r}: expected a number") from None
    missing = [name for name in spec.dims if name not in row]
    if missing:
        raise UsageError(f"kernel {op}: {missing[0]} is missing; it needs {', '.join(spec.dims)}")
    row.setdefault("direction", "fwd" if "fwd" in spec.directions else spec.directions[0])
    for name, allowed in (("framework", FRAMEWORKS), ("direction", spec.directions)):
        if row.get(name, allowed[0]) not in allowed:
            raise UsageError(f"kernel {op}: {name} {row[name]!r}; one of {', '.join(allowed)}")
    return row


_KNOWN = (
    *("low_us", "high_us", "model", "source", "bound_by", "flop", "read_bytes", "written_bytes"),
    "utilisation_frac",
)


def _answer(rows: Rows, part: Part) -> dict[str, Any]:
    from perfmodel.hardware import Cluster, Device, Node
    from perfmodel.prediction.explain import reason_of_row

    if not isinstance(part, (Device, Node, Cluster)):
        raise UsageError(f"--hardware {part.name}: expected a device, a node or a cluster")
    reason = reason_of_row(rows, part)
    terms, rounded = dict(reason.terms), ("low_us", "high_us", "utilisation_frac")
    known = {name: terms.pop(name) for name in _KNOWN}
    known |= {name: round(float(known[name] or 0.0), DECIMALS) for name in rounded}
    del terms["moved_gb_per_s"]
    numbers = {name: value for name, value in terms.items() if isinstance(value, (int, float))}
    return {
        "hardware": part.name,
        "duration_us": round(reason.duration_us, DECIMALS),
        **known,
        "formula": reason.formula,
        "terms": {name: round(float(value), DECIMALS) for name, value in numbers.items()},
        "figures": [each.to_dict() for each in reason.figures],
        "coefficients": [each.to_dict() for each in reason.coefficients],
    }


def _list(target: Output) -> None:
    """The vocabulary: each op, its family, dims and directions."""
    from perfmodel.ops.spec import OPS

    joined = ("dims", "optional", "directions")
    ops: list[dict[str, Any]] = []
    for name in OPS:
        it = OPS[name]
        lists = zip(joined, (list(it.dims), dict(it.defaults), list(it.directions)), strict=True)
        ops.append({"op": name, "family": it.family, **dict(lists)})
    rows = [op | {key: " ".join(op[key]) for key in joined} for op in ops]
    title, heads = "Ops (optional dims and directions: -v)", "op:name;family;dims"
    if LINE.get().notes:
        title, heads = "Ops", f"{heads};optional;directions"
    target.write(
        lambda: {"schema": SCHEMA, "ops": ops},
        lambda: rows,
        lambda: [Table(title, heads, rows, full_names=True)],
    )


def _blocks(title: str, answers: list[dict[str, Any]]) -> Iterator[Block]:
    """One line per device, and below it which model says so; with `-v` from which terms."""
    yield title
    first = answers[0]
    gflop, read_mb = first["flop"] / 1e9, first["read_bytes"] / 1e6
    written_mb = first["written_bytes"] / 1e6
    yield f"{gflop:,.3f} GFLOP, reads {read_mb:,.3f} MB, writes {written_mb:,.3f} MB"
    yield Table("Duration", _KERNEL, answers)
    for answer in answers:
        name = answer["hardware"]
        times = {key: value for key, value in answer["terms"].items() if key.endswith("_us")}
        longest = sorted(filter(times.get, times), key=lambda key: -times[key])[:MAX_TIMES]
        terms = ", ".join(f"{key} {times[key]:,.3f}" for key in longest)
        if more := len(answer["terms"]) - len(longest):
            terms += f" and {more} more (--format json)"
        model = f"{answer['model']} ({answer['source']})"
        details = (terms, answer["formula"]) if LINE.get().notes else ()
        yield from (f"{name}: {line}" for line in (model, *details) if line)
        yield assumed(name, answer["figures"])
