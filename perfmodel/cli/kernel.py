"""`perfmodel kernel`: what one kernel takes on a device, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Console, say_assumed_coefficients, say_assumed_figures
from perfmodel.cli.options import kernel_models
from perfmodel.cli.output import STDOUT, Output, rows_csv
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import Table, columns

if TYPE_CHECKING:
    from perfmodel.hardware import Part
    from perfmodel.ops.rows import Rows


SCHEMA = "perfmodel.kernel/1"
DECIMALS = 4
NESTED = ("terms", "figures", "coefficients")
_TEXTS = ("dtype", "direction", "timing", "framework")


def kernel(
    op: str | None = None,
    settings: list[str] | None = None,
    hardware: list[str] | None = None,
    models: Path | None = None,
    trust_models: bool = False,
    target: Output = STDOUT,
) -> None:
    """How long one kernel takes on a device, and why."""
    if op is None:
        _list(target)
        return
    if not hardware:
        raise UsageError(f"kernel {op}: name the device: --hardware h100-sxm")

    from perfmodel.hardware import load
    from perfmodel.ops.rows import Rows

    rows = Rows.of([_row(op, settings or [])])
    with kernel_models(models, trusted=trust_models):
        answers = [_answer(rows, load(name)) for name in hardware]

    title = f"{rows.op[0]} {rows.dtype[0]} {rows.direction[0]}: {rows.dims_text()}"
    target.write(
        lambda: {"schema": SCHEMA, "op": op, "results": answers},
        lambda: rows_csv([{k: v for k, v in a.items() if k not in NESTED} for a in answers]),
        lambda console: _show(console, title, answers),
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
    if row.get("framework", FRAMEWORKS[0]) not in FRAMEWORKS:
        raise UsageError(
            f"kernel {op}: framework {row['framework']!r}; one of {', '.join(FRAMEWORKS)}"
        )
    usual = "fwd" if "fwd" in spec.directions else spec.directions[0]
    if row.setdefault("direction", usual) not in spec.directions:
        raise UsageError(
            f"kernel {op}: direction {row['direction']!r}; one of {', '.join(spec.directions)}"
        )
    return row


def _answer(rows: Rows, part: Part) -> dict[str, Any]:
    """One machine's answer as `docs/schemas/kernel.json` describes it."""
    from perfmodel.hardware import Cluster, Device, Node
    from perfmodel.prediction.explain import model_reason

    if not isinstance(part, (Device, Node, Cluster)):
        raise UsageError(f"--hardware {part.name}: expected a device, a node or a cluster")
    reason = model_reason(rows, part)
    durations, (why,) = reason.durations, reason.why
    return {
        "hardware": part.name,
        "duration_us": round(float(durations.duration_us[0]), DECIMALS),
        "low_us": round(float(durations.low_us[0]), DECIMALS),
        "high_us": round(float(durations.high_us[0]), DECIMALS),
        "model": durations.model[0],
        "source": durations.source[0],
        "bound_by": why.bound_by,
        "flop": why.flop,
        "read_bytes": why.read_bytes,
        "written_bytes": why.written_bytes,
        "utilisation_frac": round(why.utilisation_frac, DECIMALS),
        "formula": why.formula,
        "terms": {name: round(float(value), DECIMALS) for name, value in why.terms.items()},
        "figures": [each.to_dict() for each in reason.figures],
        "coefficients": [each.to_dict() for each in reason.coefficients],
    }


def _list(target: Output) -> None:
    """The vocabulary: each op, its family, dims and directions."""
    from perfmodel.ops.spec import OPS

    ops = [
        {
            "op": name,
            "family": OPS[name].family,
            "dims": list(OPS[name].dims),
            "optional": dict(OPS[name].defaults),
            "directions": list(OPS[name].directions),
        }
        for name in OPS
    ]

    joined = ("dims", "optional", "directions")
    target.write(
        lambda: {"schema": SCHEMA, "ops": ops},
        lambda: rows_csv([op | {key: " ".join(op[key]) for key in joined} for op in ops]),
        lambda console: _show_ops(console, ops),
    )


_KERNEL = columns(
    "hardware=device;bound_by=bound by;duration_us=kernel:us;low_us=low:us;high_us=high:us;"
    "utilisation_frac=of peak:share"
)
_BYTES_PER_MB = 1e6
_FLOP_PER_GFLOP = 1e9
MAX_TIMES = 5
MAX_FACTORS = 3


def _show(console: Console, title: str, answers: list[dict[str, Any]]) -> None:
    """One line per device, and below it what each duration is made of."""
    console.say(title)
    first = answers[0]
    read, written = (first[key] / _BYTES_PER_MB for key in ("read_bytes", "written_bytes"))
    flop = first["flop"] / _FLOP_PER_GFLOP
    console.say(f"{flop:,.3f} GFLOP, reads {read:,.3f} MB, writes {written:,.3f} MB")
    console.show(Table("Duration", _KERNEL, answers))
    for answer in answers:
        model = f"{answer['model']} ({answer['source']})"
        for line in filter(None, (model, _terms(answer["terms"]), answer["formula"])):
            console.say(f"{answer['hardware']}: {line}")
        say_assumed_figures(console, answer["hardware"], answer["figures"])
        say_assumed_coefficients(console, answer["hardware"], answer["coefficients"])


def _terms(terms: dict[str, float]) -> str:
    """The longest times, then the factors and shares that are furthest from 1, and how many more
    there are."""
    times = [name for name in terms if name.endswith("_us")] or list(terms)
    factors = [name for name in terms if name not in times and terms[name] not in (0, 1)]
    shown = sorted(filter(terms.get, times), key=lambda name: -terms[name])[:MAX_TIMES]
    shown += sorted(factors, key=lambda name: -abs(terms[name] - 1))[:MAX_FACTORS]
    more = len(terms) - len(shown)
    text = ", ".join(f"{name} {terms[name]:,.3f}" for name in shown)
    return text + (f" and {more} more (--format json)" if more else "")


def _show_ops(console: Console, ops: list[dict[str, Any]]) -> None:
    """The vocabulary, by family."""
    records = []
    for op in sorted(ops, key=lambda op: (op["family"], op["op"])):
        optional = [f"[{name}={value:g}]" for name, value in op["optional"].items()]
        record = {"dims": " ".join([*op["dims"], *optional])}
        records.append(op | record | {"directions": " ".join(op["directions"])})
    heads = columns("op:name;family;dims;directions")
    console.show(Table("Ops", heads, records, full_names=True))
