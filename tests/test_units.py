"""Every public quantity's name ends in its unit, and figures lie where such quantities can."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from tiny import GEMM, STREAM, Tiny

from perfmodel import breakdown, durations, predict
from perfmodel.base.units import UNITS, unit_of
from perfmodel.hardware import Device, figures, find, kind_of
from perfmodel.lowering.host import load_profile
from perfmodel.lowering.host.profile import CATALOGUE

ROOT = Path(__file__).parents[1]
FLOATS = {"float", "float | None", "Floats", "Floats | None", "Floats | float", "float | Floats"}
COUNTS = re.compile(
    r"(^|_)(rows|cols|lookups|bags|keys|queries|samples|pairs|elements|messages|ranks|nodes|peers|"
    r"tables|steps|waves|hosts|batches|misses|count)$"
)
"""What is counted is its own unit."""
DIMENSIONLESS = {
    "alpha": "exponent of a Zipf distribution",
    "zipf_alpha_of": "as alpha",
    "stream_alpha": "as alpha",
    "share": "of a range or a whole, 0 to 1",
    "chance": "a probability",
    "kept_by_counts": "chance of each row to be in a cache",
    "rate": "accesses of a row per access",
    "error": "of values, relative to what is rounded",
    "budget": "as error, at most",
    "elasticity": "percent per percent",
    "imbalance": "largest over mean",
    "lever_speed_up": "rate over rate",
    "over_best": "cost over cost",
    "copies": "jobs at once",
    "read_amplification": "bytes over bytes",
    "error_of": "as error",
    "pooling": "lookups per bag",
    "lru": "as kept_by_counts",
    "most_popular": "as kept_by_counts",
    "expected": "mean of a Poisson count",
    "sampled": "samples",
}
"""Names without a unit, and what they are."""
OF_ANOTHER = {
    *("value", "values", "measured", "predicted", "baseline", "present", "a", "b"),
    *(
        "by_rank_and_step",
        "per_mark",
        "most",
        "low",
        "high",
        "base",
        "at_base",
    ),
    *("summed", "once", "step_us_of_many", "durations", "lookup"),
    *("least", "capacity", "used", "size"),
    *("weight", "row_weights", "variance", "busiest_load"),  # of whatever loads a rank
}
"""Names of what has the unit that something beside it tells: a row's `unit`, an axis, an argument,
the name around it (`error_pct`), the statistic asked for (`mean_us`)."""


def _is_told(name: str) -> bool:
    name = re.sub(r"_(measured|predicted)$", "", name)
    if unit_of(name) is not None or COUNTS.search(name.split("_per_")[0]):
        return True
    return name in DIMENSIONLESS or name in OF_ANOTHER


def _public_files() -> list[Path]:
    """The modules on the page of the API."""
    found, page = set(), ROOT / "docs" / "api.md"
    for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M):
        path = ROOT / name.replace(".", "/")
        while not (path.with_suffix(".py").exists() or (path / "__init__.py").exists()):
            path = path.parent
        module = path.with_suffix(".py")
        found.add(module if module.exists() else path / "__init__.py")
    return sorted(found)


def _quantities(path: Path) -> Iterator[str]:
    """Names of floats in a module: fields, properties, arguments, functions that return one."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    for node in (*module.body, *(each for one in classes for each in one.body)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _if_float(node.target.id, node.annotation)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for argument in (*node.args.args, *node.args.kwonlyargs):
                yield from _if_float(argument.arg, argument.annotation)
            yield from _if_float(node.name, node.returns)


def _if_float(name: str, annotation: ast.expr | None) -> Iterator[str]:
    if annotation is not None and ast.unparse(annotation) in FLOATS and not name.startswith("_"):
        yield name.lower()


def test_public_names_tell_their_unit() -> None:
    said = f"end them in one of {', '.join(UNITS)}, or say above what they are"
    for path in _public_files():
        untold = sorted({name for name in _quantities(path) if not _is_told(name)})
        assert not untold, f"{path}: {said}"


def test_answers_tell_their_units() -> None:
    assert not {name for name in _of_answers() if not _is_told(name)}


def test_the_lists_hold_no_name_that_is_not_there() -> None:
    there = set(_of_answers()).union(*map(_quantities, _public_files()))
    assert not {*DIMENSIONLESS, *OF_ANOTHER} - there


def _of_answers() -> Iterator[str]:
    for path in (ROOT / "docs" / "schemas").glob("*.json"):
        yield from _numbers(json.loads(path.read_text(encoding="utf-8")))


def _numbers(schema: object) -> Iterator[str]:
    """Properties that may be numbers but not whole ones."""
    if isinstance(schema, list):
        for each in schema:
            yield from _numbers(each)
    elif isinstance(schema, dict):
        properties = schema.get("properties")
        for name, told in (properties if isinstance(properties, dict) else {}).items():
            kinds = told.get("type", "")
            if "number" in (kinds if isinstance(kinds, list) else [kinds]):
                yield name
        for each in schema.values():
            yield from _numbers(each)


def _frames() -> dict[str, pd.DataFrame]:
    tiny = Tiny()
    tiny.step(1, 0, 1000)
    tiny.op("aten::mm", 10, 40)
    tiny.launch(15, 20, kernel=(110, 510))
    tiny.kernel(1, 101, GEMM, STREAM)
    trace = tiny.trace()
    found = predict(trace)
    op = pd.DataFrame([{"op": "linear", "m": 64, "n": 64, "k": 64}])
    return {
        "predict": found.to_frame(),
        "timeline": found.results[0].timeline.to_frame(),
        "breakdown": breakdown(trace).to_frame(),
        "durations": durations(op, "t4"),
        "profile": load_profile("h100-inference").frame(),
    }


@pytest.mark.parametrize("name", ["predict", "timeline", "breakdown", "durations"])
def test_columns_tell_their_unit(name: str) -> None:
    floats = _frames()[name].select_dtypes("float")
    untold = [column for column in floats if not _is_told(str(column))]
    counts = {"sm_count", "max_threads_per_sm"}
    assert not set(untold) - counts


PLAUSIBLE = {
    ("device", "hbm_gb_per_s"): (10, 20_000),
    ("device", "l2_gb_per_s"): (100, 50_000),
    ("device", "pcie_gb_per_s"): (7, 1_000),
    ("device", "link_gb_per_s"): (15, 2_000),
    ("device", "hbm_bytes"): (4e9, 2e12),
    ("device", "l2_bytes"): (2.5e5, 1e9),
    ("device", "tdp_w"): (5, 1_500),
    ("device", "kernel_floor_us"): (0.05, 10),
    ("device", "boost_mhz"): (500, 6_000),
    ("device", "fp32_tflop_per_s"): (0.1, 300),
    ("host", "dram_gb_per_s"): (20, 2_000),
    ("host", "boost_mhz"): (1_000, 6_000),
    ("link", "gb_per_s"): (10, 2_000),
    ("nic", "gb_per_s"): (0.1, 200),
    ("nic", "latency_us"): (0.1, 100),
    ("storage", "read_gb_per_s"): (0.1, 50),
    ("storage", "read_latency_us"): (1, 500),
    ("storage", "read_iops"): (1e4, 1e8),
    ("storage", "capacity_bytes"): (1e11, 1e14),
}
"""Between which values such figures have been in any machine so far: units are not mixed up."""


def test_the_catalogues_figures_are_of_their_units() -> None:
    wrong = []
    for part in find():
        for figure in figures(part):
            low, high = PLAUSIBLE.get((kind_of(part), figure.key), (None, None))
            if unit_of(figure.key) == "share":
                low, high = 0.0, 1.0
            if low is not None and high is not None and not low <= figure.value <= high:
                wrong.append((part.name, figure))
    assert not wrong


def test_narrower_types_are_no_slower_and_caches_no_slower_than_memory() -> None:
    for part in find(kind="device"):
        assert isinstance(part, Device)
        wide, narrow, brain = part.tf32_tflop_per_s, part.fp16_tflop_per_s, part.bf16_tflop_per_s
        assert (wide or 0) <= (narrow or brain or float("inf")), part.name
        assert (narrow or 0) <= (part.fp8_tflop_per_s or float("inf")), part.name
        assert part.hbm_gb_per_s <= (part.l2_gb_per_s or float("inf")), part.name


@pytest.mark.parametrize("path", sorted(CATALOGUE.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_overheads_are_of_microseconds(path: Path) -> None:
    rows = load_profile(path).frame()
    assert (rows["mean_us"] >= 0).all()
    whole = rows[rows["op"].isna() & rows["thread"].isna()]
    assert whole["mean_us"].between(0.1, 200).all(), "a host's stretch, not ns and not ms"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("step_us", "us"),
        ("gb_per_s", "GB/s"),
        ("usd_per_million_samples", "per million samples"),
        ("price_usd_per_hour", "USD/h"),
        ("hit_frac", "share"),
        ("rows", None),
        ("profiler_us_per_event", "us per event"),
        ("shared_bytes_per_sm", "bytes per sm"),
        ("bus", None),
    ],
)
def test_a_name_ends_in_its_unit(name: str, unit: str | None) -> None:
    assert unit_of(name) == unit


def test_shares_have_a_blank_before_their_percent() -> None:
    """`12.3 %` everywhere: Python's own form of shares has none."""
    joined = re.compile(r"\{[^{}\n]*:[^{}\n]*\d%\}|=[^;\n\"]*:\.\d%")
    files = [*(ROOT / "perfmodel").rglob("*.py"), *(ROOT / "perfmodel").rglob("*.toml")]
    for known in ('f"{frac:+.1%}"', "share_frac=share:.0%;gain"):
        assert joined.search(known)
    assert not [f"{file}: {found}" for file in files for found in joined.findall(file.read_text())]
