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

import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel import hardware
from perfmodel.calibrate.kernels import fit_kernels
from perfmodel.cost.gpu.heuristic import Floor, off_by_both
from perfmodel.cost.learned.devices import describe, distance, kinship, unlikeness
from perfmodel.cost.learned.features import BUILDS
from perfmodel.cost.learned.floors import KnownFloor, factor_of_hosts, known_floors
from perfmodel.cost.learned.part import SeparateTrees, known_device_columns
from perfmodel.cost.learned.same_kernels import with_same_kernels
from perfmodel.cost.learned.store import SCHEMA, Trees, load_models, save
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.ops.rows import Rows

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
    assert load_models(folder)["vector"].parts[0].share > 0.5
    l4, mi300x = (perfmodel.durations(one, name, models=folder) for name in ("l4", "mi300x"))
    assert l4["source"].iloc[0] == "measurements of other devices"
    assert mi300x["source"].iloc[0] == "datasheet figures"
    width = (l4["high_us"] / l4["low_us"]).iloc[0]
    own = perfmodel.durations(one, "t4", models=folder)
    assert width > (own["high_us"] / own["low_us"]).iloc[0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trees(folder: Path, tmp_path: Path) -> None:
    fitted = fit_kernels([folder.parent / "data.csv"], rows_per_group=200)
    save(tmp_path / "again", fitted.models, fitted.about)
    for path in sorted(folder.iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


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


def resealed(folder: Path, change: Callable[[dict], object]) -> None:
    """A manifest changed by somebody who computes its digest anew."""
    content = json.loads((folder / "manifest.json").read_text())
    del content["sha256"]
    change(content["families"]["vector"]["parts"][0])
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content))


OWN = {"file": "own.trees.gz", "sha256": ""}
APART = OWN | {"framework": 4, "kinds": [["linear", "fp32"]], "places": [0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda part: part["measured"][0].__setitem__(2, [99]), "a place among the devices"),
        (lambda part: part["devices"][0].pop("sms"), "without all of its figures"),
        (lambda part: part["devices"][0].update(sms="many"), "Expected `float`, got `str`"),
        (lambda part: part["devices"][0].update(sms=-1e308), "Expected `float` >= -1e\\+30"),
        (lambda part: part["spreads"].pop("*"), "spreads of other ops"),
        (lambda part: part["spreads"]["*"].update(seen=[0.1, -0.1]), "ends before it begins"),
        (lambda part: part.update(share=1e300), "Expected `float` <= 1.0"),
        (lambda part: part.update(build="house"), "build 'house' is none of matmul"),
        (lambda part: part["tiles"].update({"mm": [[8.0, 8.0, 1.0]]}), "op/dtype/target"),
        (lambda part: part.pop("trees"), "missing required field `trees`"),
        (lambda part: part.update(gains={"figure": "x", "slopes": {"mm": {}}}), "gains by 'x'"),
        (lambda part: part.update(own={99: OWN}), "a place among the devices"),
        (lambda part: part.update(own={-1: OWN}), "Expected `int` >= 0"),
        (lambda part: part.update(separate=[APART | {"places": [99]}]), "a place among the"),
        (lambda part: part.update(separate=[APART | {"places": []}]), "of length >= 1"),
        (lambda part: part.update(separate=[APART | {"framework": 9}]), "Expected `int` <= 4"),
    ],
)
def test_a_resealed_manifest_is_checked_against_itself(
    folder: Path, tmp_path: Path, change: Callable[[dict], object], said: str
) -> None:
    shutil.copytree(folder, tmp_path / "models")
    resealed(tmp_path / "models", change)
    with pytest.raises(ModelError, match=said) as error:
        load_models(tmp_path / "models")
    assert "manifest.json: unusable" in str(error.value)


def test_a_node_asks_for_figures_that_there_are(folder: Path) -> None:
    """One bad index ended the process in the compiled walk."""
    trees = load_models(folder)["vector"].parts[0].trees
    width = len(known_device_columns(load_models(folder)["vector"].parts[0].figures))
    raw = bytearray(gzip.decompress(trees.packed))
    raw[16] = 254  # the first node's figure, behind the head
    with pytest.raises(ModelError, match=rf"bad\.gz: .* a column that is none of {width}"):
        Trees(gzip.compress(raw), "bad.gz").predict(np.zeros((1, width), np.float32))
    with pytest.raises(ModelError, match=rf"of {width} columns, not of {width + 1}"):
        Trees(trees.packed, "others.gz").predict(np.zeros((1, width + 1), np.float32))


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


def test_kinship_falls_with_distance() -> None:
    a100, h100 = (describe(hardware.device(name)) for name in ("a100-sxm-40gb", "h100-sxm"))
    assert distance(a100, a100) == 0
    assert kinship(0.0) == 1
    assert kinship(distance(a100, h100)) == 0


def test_intervals_widen_with_distance() -> None:
    assert unlikeness(0.0) == 0.0
    ways = [unlikeness(away) for away in (0.05, 0.2, 0.4, 0.9)]
    assert ways == sorted(ways)
    assert ways[0] == 0.5
    assert ways[-1] == 1.0


def test_one_chip_of_a_maker_does_not_show_how_far_its_trees_hold(folder: Path) -> None:
    model = load_models(folder)["vector"]
    spread = replace(model.parts[0].spreads["*"], unseen=(-0.1, 0.1), physics=(-0.2, 0.9))
    part = replace(model.parts[0], spreads={"*": spread})
    lone = replace(part, measured={key: own[:1] for key, own in part.measured.items()})
    rows, widths = Rows.from_frame(measured().head(1)), []
    for each in (part, lone):
        found = replace(model, parts=(each,)).estimate(rows, hardware.device("l4"))
        widths.append(float(np.log(found.high_us / found.low_us)[0]))
    assert widths == pytest.approx([0.2, 1.1], rel=0.05)


def test_independent_errors_add_in_squares() -> None:
    found = off_by_both(np.exp([0.3, -0.3, 0.0, 0.3]), np.exp([0.4, -0.4, -0.4, 0.0]))
    assert np.log(found) == pytest.approx([0.5, -0.5, -0.4, 0.3])


def test_floors_of_nine_of_ten_further_hosts_lie_within_what_few_show() -> None:
    logs = np.random.default_rng(0).normal(3.0, 0.3, (2000, 7))
    for hosts in (3, 6):
        support, further = logs[:, :hosts], logs[:, hosts]
        factors = [factor_of_hosts(np.exp(each)[:, None])[0] for each in support]
        within = np.abs(further - np.median(support, axis=1)) <= np.log(factors)
        assert within.mean() == pytest.approx(0.9, abs=0.025)
    assert factor_of_hosts(np.array([[20.0, 9.0], [30.0, 13.0]])).tolist() == [2.0, 2.0]


def test_calls_at_a_measured_floor_scatter_as_those_of_its_host_did() -> None:
    known, other = hardware.device("v100-pcie-32gb"), hardware.device("a100-pcie-40gb")
    own = KnownFloor(describe(known), Floor(40.0, 20.0, scatter=(0.95, 1.1)))
    (usual, least, most), offsets = known_floors((own,), known)
    assert [usual, least, most] == pytest.approx([40.0, 38.0, 44.0])
    assert offsets / 20.0 == pytest.approx([1.0, 0.95, 1.1])
    elsewhere, _ = known_floors((own,), other)
    by_both = np.hypot(np.log(2.0), np.log([0.95, 1.1]))
    assert np.log(elsewhere / 40.0) == pytest.approx([0.0, -by_both[0], by_both[1]])


class Always:
    """Trees that say one thing."""

    packed, suffix = b"", ".trees.gz"

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        return np.full(len(matrix), self.factor)


def test_trees_of_a_devices_own_are_half_of_its_answer_and_nothing_of_others(folder: Path) -> None:
    part = load_models(folder)["matmul"].parts[0]
    place = part.devices.index(describe(hardware.device("t4")))
    part = replace(part, trees=Always(0.1), own={place: Always(0.3)}, share=1.0)
    rows = Rows.from_frame(measured().query("op == 'mm'").head(3))
    factors = {}
    for name in ("t4", "v100-sxm2-16gb", "l4"):
        device = hardware.device(name)
        columns = BUILDS[part.build](rows, device, part.tiles)
        known = part.known_to("mm", "fp32")
        found = part.log_factors(columns, list(rows.groups()), device, known)
        factors[name] = found.factors.tolist()
    assert factors["t4"] == pytest.approx([0.2] * 3)
    assert factors["v100-sxm2-16gb"] == factors["l4"] == pytest.approx([0.1] * 3)


def test_trees_of_a_framework_answer_alone_where_it_was_measured(folder: Path) -> None:
    """A100 and H100 are not alike, an H200 is like an H100 in part; other frameworks have what all
    have, and so do kinds of dtype in which the framework ran nothing."""
    part = load_models(folder)["matmul"].parts[0]
    place = part.devices.index(describe(hardware.device("h100-sxm")))
    separate = SeparateTrees(Always(0.3), 4, frozenset({("linear", "fp32")}), (place,))
    part = replace(part, trees=Always(0.1), own={}, separate=(separate,), share=1.0)
    rows = with_same_kernels(Rows.from_frame(measured().query("op == 'mm'").head(3)))
    rows = replace(rows, dims=rows.dims | {"framework": np.array([4.0, 1.0, 0.0])})
    factors = {}
    for name in ("h100-sxm", "h200", "a100-sxm-40gb"):
        device = hardware.device(name)
        columns = BUILDS[part.build](rows, device, part.tiles)
        known, own = part.known_to("linear", "fp32"), part.by_separate(rows, device)
        found = part.log_factors(columns, list(rows.groups()), device, known, own)
        factors[name] = found.factors.tolist()
    assert factors["h100-sxm"] == pytest.approx([0.3, 0.1, 0.1])
    assert factors["a100-sxm-40gb"] == pytest.approx([0.1] * 3)
    near = kinship(distance(*(describe(hardware.device(name)) for name in ("h100-sxm", "h200"))))
    assert 0.0 < near < 1.0
    assert factors["h200"] == pytest.approx([0.1 + 0.2 * near, 0.1, 0.1])
    narrow = replace(rows, dtype=("fp16",) * 3)
    assert part.by_separate(narrow, hardware.device("h100-sxm")).tolist() == [0.0] * 3


def test_trees_of_a_framework_are_kept(folder: Path, tmp_path: Path) -> None:
    models = load_models(folder)
    part = models["matmul"].parts[0]
    separate = SeparateTrees(
        part.trees, 4, frozenset({("linear", "fp32"), ("bmm", "fp16")}), (0, 2)
    )
    model = replace(models["matmul"], parts=(replace(part, separate=(separate,)),))
    save(tmp_path / "models", {"matmul": model}, {})
    kept = load_models(tmp_path / "models")["matmul"].parts[0].separate[0]
    assert replace(kept, trees=separate.trees) == separate
    matrix = np.zeros((1, len(known_device_columns(part.figures))), np.float32)
    assert kept.trees.predict(matrix) == part.trees.predict(matrix)


def test_trees_without_xgboost_answer_as_with_it(folder: Path) -> None:
    part = load_models(folder)["matmul"].parts[0]
    names = known_device_columns(part.figures)
    matrix = np.random.default_rng(0).normal(0, 3, (600, len(names))).astype(np.float32)
    many = part.trees.predict(matrix)
    few = np.concatenate([part.trees.predict(matrix[:300]), part.trees.predict(matrix[300:])])
    assert few == pytest.approx(many, abs=1e-4)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "of 16 bytes, which 0 nodes are not"),
        ([0, 255], "ends early"),
        ([255, 0], "ends early"),
        ([*[0, 255] * 80, 255], "deeper than any"),
        ([0, 255, 3], "ends early"),
        ([3, 255, 255], "a column that is none of 3"),
    ],
)
def test_nodes_that_are_no_trees_are_an_error(nodes: list[int], said: str) -> None:
    raw = struct.pack("<IId", 3, len(nodes), 0.0) + bytes(nodes) + bytes(4 * len(nodes))
    with pytest.raises(ModelError, match=rf"^x\.gz: not an ensemble of trees: .*{said}"):
        Trees(gzip.compress(raw), "x.gz").predict(np.zeros((1, 3), np.float32))


@pytest.mark.parametrize("raw", [b"", b"{", b"\x00" * 40, b"\xff" * 40])
def test_what_is_no_ensemble_is_an_error(raw: bytes) -> None:
    trees = Trees(gzip.compress(raw), "trees.trees.gz")
    with pytest.raises(ModelError, match=r"trees\.trees\.gz: not an ensemble of trees"):
        trees.predict(np.zeros((1, 3), np.float32))
