"""Model directories: what is saved is what is loaded, and nothing else is accepted."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel import hardware
from perfmodel.cost.gpu.analysis import DATASHEET
from perfmodel.cost.learned.features import (
    COLUMNS,
    FEATURES,
    as_kernels,
    describe,
    distance,
    interval_blend,
    similarity,
)
from perfmodel.cost.learned.model import File, Part
from perfmodel.cost.learned.store import (
    MANIFEST,
    SCHEMA,
    Stored,
    load_models,
    save,
)
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.matmul import DECODE
from perfmodel.validate.calibrate.kernels import fit_kernels

DEVICES = ("v100-sxm2-16gb", "a100-sxm-40gb", "h100-sxm", "t4")


def measured(rows: int = 150) -> pd.DataFrame:
    """Adds at 0.2 to 0.6 of the bandwidth by length of row, products at 0.7 of the peak."""
    generator = np.random.default_rng(1)
    parts = []
    for name in DEVICES:
        device = hardware.device(name)
        size = 2.0 ** generator.uniform(10, 14, (rows, 2))
        add = pd.DataFrame(np.floor(size), columns=["rows", "cols"])
        moved = 12.0 * add["rows"] * add["cols"]
        reached_frac = 0.4 * (add["cols"] / 4096.0) ** 0.4
        add["duration_us"] = 3.0 + moved / (1e3 * reached_frac * device.hbm_gb_per_s)
        sides = np.floor(2.0 ** generator.uniform(9, 13, (rows, 3)))
        mm = pd.DataFrame(sides, columns=["m", "n", "k"])
        flop = 2.0 * mm["m"] * mm["n"] * mm["k"]
        mm["duration_us"] = 3.0 + flop / (0.7e6 * device.fp32_tflop_per_s)
        for op, table in (("add", add), ("mm", mm)):
            parts.append(table.assign(op=op, device=name, dtype="fp32", timing="profiler_kernel"))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fit")
    measured().to_csv(place / "data.csv", index=False)
    fitted = fit_kernels([place / "data.csv"], rows_per_group=200)
    save(place / "models", fitted.models, fitted.about)
    return place / "models"


def test_fitted_models_predict_what_they_were_fitted_on(folder: Path) -> None:
    table = measured()
    for name, own in table.groupby("device"):
        found = perfmodel.durations(own, name, models=folder)
        error = np.abs(found["duration_us"] / own["duration_us"] - 1)
        assert np.median(error) < 0.06
        assert (found["low_us"] <= found["duration_us"]).all()
        assert (found["duration_us"] <= found["high_us"]).all()
        assert set(found["model"]) == {"gpu/vector/learned", "gpu/matmul/learned"}


def test_the_source_says_whether_the_device_was_seen(folder: Path) -> None:
    one = measured().head(1)
    seen = perfmodel.durations(one, "t4", models=folder)["source"].iloc[0]
    unseen = perfmodel.durations(one, "l4", models=folder)["source"].iloc[0]
    assert seen == "measurements of this device or one like it"
    assert unseen == "measurements of other devices"


def test_what_the_trees_say_of_one_makers_devices_is_not_said_of_anothers(folder: Path) -> None:
    one = measured().head(1)
    assert load_models(folder)["vector"].parts[0].fitted.share > 0.5
    l4, mi300x = (perfmodel.durations(one, name, models=folder) for name in ("l4", "mi300x"))
    assert l4["source"].iloc[0] == "measurements of other devices"
    assert mi300x["source"].iloc[0] == "datasheet figures"
    width = (l4["high_us"] / l4["low_us"]).iloc[0]
    own = perfmodel.durations(one, "t4", models=folder)
    assert width > (own["high_us"] / own["low_us"]).iloc[0]


def test_the_manifest_says_what_the_models_rest_on(folder: Path) -> None:
    about = json.loads((folder / "manifest.json").read_text())["about"]
    assert about["data"][0]["rows"] == 2 * 4 * 150
    assert len(about["data"][0]["sha256"]) == 64
    assert about["parts"]["matmul_fp32"]["devices"] == sorted(DEVICES)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def turned(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(bytes(raw))


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))


def of_another_version(path: Path) -> None:
    path.write_text(path.read_text().replace(SCHEMA, f"{SCHEMA}0"))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("manifest.json", cut),
        ("manifest.json", edited),
        ("manifest.json", of_another_version),
        ("manifest.json", Path.unlink),
        ("vector_flat.trees.gz", cut),
        ("vector_flat.trees.gz", turned),
        ("vector_flat.trees.gz", Path.unlink),
    ],
)
def test_damaged_directories_are_errors_that_name_the_file(
    folder: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    copy = tmp_path / "models"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    damage(copy / name)
    with pytest.raises(PerfmodelError) as error:
        load_models(copy)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def resealed(folder: Path, copy: Path, change: Callable[[dict], object]) -> Path:
    """A copy whose manifest was changed by somebody who computes its digest anew."""
    shutil.copytree(folder, copy)
    content = json.loads((copy / MANIFEST).read_text())
    del content["sha256"]
    seen = set()
    for part in content["parts"]:
        if part["family"] not in seen:
            change(part)
        seen.add(part["family"])
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (copy / MANIFEST).write_text(json.dumps(content))
    return copy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda part: part["devices"]["t4"].update(sms="many"), "Expected `float`, got `str`"),
        (lambda part: part.update(family="house"), "of none of matmul"),
        (lambda part: part["files"].pop(""), "a part without trees"),
        (lambda part: [each.pop("work") for each in part["measured"].values()], "work is not"),
    ],
)
def test_a_resealed_manifest_is_checked_against_itself(
    folder: Path, tmp_path: Path, change: Callable[[dict], object], said: str
) -> None:
    copy = resealed(folder, tmp_path / "models", change)
    with pytest.raises(ModelError, match=said) as error:
        load_models(copy)
    assert "manifest.json: unusable" in str(error.value)


def trees(content: bytes, name: str) -> Stored:
    return Stored(content, File(name, ""), name)


def test_a_node_asks_for_features_that_there_are(folder: Path) -> None:
    part = load_models(folder)["vector"].parts[0]
    width, content = len((*part.fitted.features, *COLUMNS)), part.trees[""].content
    raw = bytearray(gzip.decompress(content))
    raw[20] = 254  # the first node's feature, behind the head
    with pytest.raises(ModelError, match=rf"bad\.gz: .* a column that is none of {width}"):
        trees(gzip.compress(raw), "bad.gz").predict(np.zeros((1, width), np.float32))
    with pytest.raises(ModelError, match=rf"of {width} columns, not of {width + 1}"):
        trees(content, "others.gz").predict(np.zeros((1, width + 1), np.float32))


def test_a_directory_is_never_written_over(folder: Path) -> None:
    with pytest.raises(PerfmodelError, match="exists already"):
        save(folder, {}, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration_us": -1.0}, "row 0: duration_us is -1; expected above 0"),
        ({"duration_us": float("nan")}, "duration_us is missing"),
        ({"timing": "guess"}, "unknown timing 'guess'"),
        ({"rows": 0.0}, "rows is 0; expected at least 1"),
        ({"dtype": "fp13"}, "unknown dtype 'fp13'"),
    ],
)
def test_impossible_tables_are_errors(tmp_path: Path, change: dict, said: str) -> None:
    table = measured(100)
    for column, value in change.items():
        table.loc[0, column] = value
    table.to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(ModelError, match=said):
        fit_kernels([tmp_path / "bad.csv"], rows_per_group=200)


def test_similarity_falls_with_distance_and_intervals_widen() -> None:
    a100, h100 = (describe(hardware.device(name)) for name in ("a100-sxm-40gb", "h100-sxm"))
    assert distance(a100, a100) == 0
    assert similarity(0.0) == 1
    assert similarity(distance(a100, h100)) == 0
    blends = [interval_blend(away) for away in (0.0, 0.05, 0.2, 0.4, 0.9)]
    assert blends == sorted(blends)
    assert [blends[0], blends[1], blends[-1]] == [0.0, 0.5, 1.0]


class Always:
    """Trees that say one thing."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        return np.full(len(matrix), self.factor)


def longer(part: Part, device: str) -> list[float]:
    """Logarithm by which each of three products takes longer than its base on `device`."""
    rows = as_kernels(Rows.from_frame(measured().query("op == 'mm'").head(3)))
    target = hardware.device(device)
    columns = FEATURES[part.fitted.family](rows, target)
    us, _ = part.kernels(columns, target, part.cell(rows, describe(target)))
    return np.log(us / columns.base_us).tolist()


def test_trees_of_a_devices_own_are_half_of_its_answer_and_nothing_of_others(folder: Path) -> None:
    part = load_models(folder)["matmul"].parts[0]
    fitted = msgspec.structs.replace(part.fitted, share=1.0)
    part = replace(part, fitted=fitted, trees={"": Always(0.8), "t4": Always(1.2)})
    assert longer(part, "t4") == pytest.approx([1.0] * 3, rel=1e-3)
    assert longer(part, "v100-sxm2-16gb") == pytest.approx([0.8] * 3, rel=1e-3)
    assert longer(part, "l4") == pytest.approx([0.8] * 3, rel=1e-3)


def test_rows_outside_of_what_was_measured_are_physics(folder: Path) -> None:
    """Products of a single step, and those of a maker of whom nothing was measured."""
    part = replace(load_models(folder)["matmul"].parts[0], trees={"": Always(5.0)})
    rows = Rows.of([{"op": "linear", "m": 1024, "n": 1024, "k": k} for k in (1, 1024)])
    for name, outside in (("t4", [0]), ("mi300x", [0, 1])):
        device = hardware.device(name)
        columns = FEATURES[part.fitted.family](rows, device)
        us, _ = part.kernels(columns, device, part.cell(rows, describe(device)))
        physics = part.heuristic.analyse(rows, device).kernel_us
        assert us[outside] == pytest.approx(np.maximum(physics[outside], device.kernel_floor_us))
        said = part.answer(rows, device).source == DATASHEET
        assert np.flatnonzero(said).tolist() == outside


def test_one_query_over_more_keys_decodes() -> None:
    one = {"op": "attention", "b": 1, "s": 1, "heads": 2, "head_dim": 8}
    rows = Rows.of([one | {"s_kv": 9}, one | {"past": 3}, one, one | {"s": 4, "s_kv": 9}])
    assert as_kernels(rows).op == (DECODE, DECODE, "attention", "attention")


def test_a_host_has_its_own_floor_and_others_that_of_their_maker(folder: Path) -> None:
    part = load_models(folder)["vector"].parts[0]
    floors = {f"{name}/event_single_call/add/fp32": us for name, us in FLOORS.items()}
    part = replace(part, fitted=msgspec.structs.replace(part.fitted, floors=floors))
    rows = Rows.of([{"op": "add", "rows": 8, "cols": 8, "timing": "event_single_call"}])
    found = {}
    for name in ("t4", "l4", "mi300x"):
        own = describe(hardware.device(name))
        cell = part.cell(rows, own)
        found[name] = [cell.floor_us, cell.offset_us]
    assert found == {"t4": [20.0, 10.0], "l4": [30.0, 15.0], "mi300x": [30.0, 15.0]}


FLOORS = {"t4": 20.0, "v100-sxm2-16gb": 30.0, "h100-sxm": 90.0}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (struct.pack("<IIId", 3, 0, 1, 0.0), "not 0 trees of 1 levels"),
        (struct.pack("<IIId", 3, 1, 60, 0.0) + bytes(40), "not 1 trees of 60 levels"),
        (struct.pack("<IIId", 3, 1, 1, 0.0) + b"\3" + bytes(12), "a column that is none of 3"),
        (struct.pack("<IIId", 3, 1, 1, 0.0) + b"\2" + b"\xff" * 12, "not finite"),
        (struct.pack("<IIId", 3, 1, 1, 0.0) + bytes(12), "32 bytes are not 1 trees of 1 levels"),
        (b"", "not 0 trees"),
        (b"\x00" * 40, "not 0 trees"),
        (b"\xff" * 40, "are not"),
    ],
)
def test_what_is_no_ensemble_is_an_error(raw: bytes, said: str) -> None:
    with pytest.raises(ModelError, match=rf"^x\.gz: not an ensemble of trees: .*{said}"):
        trees(gzip.compress(raw), "x.gz").predict(np.zeros((1, 3), np.float32))
