"""The traces that this project captured, and ships."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import perfmodel

DEMO = Path(perfmodel.__file__).parent / "demo"
TRACES = Path(__file__).parents[2] / "traces"
STEMS = [
    DEMO / "dlrm_cpu",
    *(TRACES / "cpu_dlrm_2rank" / f"dlrm_rank{rank}" for rank in (0, 1)),
]
DEMO_LIMIT_BYTES = 400_000
SET_LIMIT_BYTES = 2_000_000
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.-]+/)+")


def unpack(stem: Path, kind: str) -> tuple[str, dict[str, Any]]:
    text = gzip.decompress(stem.with_name(f"{stem.name}_{kind}.json.gz").read_bytes()).decode()
    return text, json.loads(text)


@pytest.fixture(params=STEMS, ids=lambda stem: stem.name)
def stem(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    if not path.with_suffix(".json").exists():
        pytest.skip("traces/ is in a checkout only, and this is none")
    return path


def test_both_files_hold_the_same_six_steps(stem: Path) -> None:
    events = unpack(stem, "kineto")[1]["traceEvents"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert len(steps) == 6
    recorded = {
        attribute["value"]: node["name"]
        for node in unpack(stem, "et")[1]["nodes"]
        for attribute in node["attrs"]
        if attribute["name"] == "rf_id"
    }
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    linked = [e for e in ops if recorded.get(e["args"].get("Record function id")) == e["name"]]
    assert len(linked) > 0.97 * len(ops)


def test_nothing_names_a_host_or_a_path(stem: Path) -> None:
    for kind in ("kineto", "et"):
        text, content = unpack(stem, kind)
        assert not ABSOLUTE_PATH.search(text)
        assert content.get("host_name", "host") == "host"


def test_the_truth_stands_beside_the_trace(stem: Path) -> None:
    record = json.loads(stem.with_suffix(".json").read_text())
    unprofiled, profiled = record["unprofiled"], record["profiled"]
    assert len(unprofiled["before_us"] + unprofiled["after_us"]) >= 100
    assert 0 < unprofiled["p10_us"] <= unprofiled["median_us"] < profiled["median_us"]
    assert record["workload"]["sharding"].startswith("table_wise")
    assert record["machine"]["torch"].startswith("2.13")


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < DEMO_LIMIT_BYTES
    for folder in (path for path in TRACES.glob("*") if path.is_dir()):
        assert sum(path.stat().st_size for path in folder.iterdir()) < SET_LIMIT_BYTES
