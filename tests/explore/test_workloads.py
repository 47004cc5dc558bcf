"""Sweeps of workloads: every kind of axis is what predictions one by one say."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from perfmodel.designs import deployment_of
from perfmodel.designs.composed import composed
from perfmodel.errors import PerfmodelError
from perfmodel.explore import load_spec, sweep
from perfmodel.explore.axes import Machines
from perfmodel.explore.result import ERROR
from perfmodel.hardware import load
from perfmodel.prediction import predict
from perfmodel.prediction.compare import fastest
from perfmodel.trace import read
from perfmodel.workload import load_workload

SMALL = "criteo-kaggle"


def written(folder: Path, text: str, name: str = SMALL) -> Path:
    path = folder / "spec.toml"
    path.write_text(f'workload = "{name}"\n{text}')
    return path


@pytest.mark.slow
def test_settings_batch_nodes_and_figures(tmp_path: Path) -> None:
    text = """
    hardware = "dgx-1"
    [axes]
    batch = [2048, 4096]
    nodes = [1, 2]
    workload.table.pooling = [1, 4]
    device.hbm_gb_per_s = [900, 1200]
    """
    found = sweep(load_spec(written(tmp_path, text))).frame
    assert len(found) == 16
    for _, row in found.iloc[[0, 6, 13]].iterrows():
        pooling = row["workload.table.pooling"]
        workload = load_workload(SMALL).with_(table__pooling=pooling)
        machines = Machines({"device.hbm_gb_per_s": [900]}, base="dgx-1", alone=True)
        machine = machines.at({"device.hbm_gb_per_s": row["device.hbm_gb_per_s"]})
        alone = predict(
            workload, hardware=[machine], nodes=int(row["nodes"]), batch=int(row["batch"])
        )
        assert row["step_us"] == pytest.approx(alone.results[0].step_us, rel=1e-9)


def test_workers_take_a_workload_a_trace_and_a_machine_themselves() -> None:
    machine = load("dgx-a100-80gb")
    for given in (load_workload("criteo-kaggle"), read("traces/cpu_dlrm_2rank")):
        spec = load_spec({"workload": given, "hardware": machine, "axes": {"batch": [2048]}})
        copied = pickle.loads(pickle.dumps(spec))
        assert copied.hardware == machine
        assert sweep(copied).frame.equals(sweep(spec).frame)


@pytest.mark.slow
def test_designs_and_their_settings(tmp_path: Path) -> None:
    text = """
    hardware = "dgx-1"
    objective = ["step_us", "samples_per_s", "energy"]
    [axes]
    design = ["default", "hotline"]
    hotline.hot_mib = [64, 512]
    """
    found = sweep(load_spec(written(tmp_path, text))).frame
    one, other = found["step_us"][:2]
    assert one == pytest.approx(other, rel=1e-9), "a setting of hotline does nothing without"
    start = deployment_of(load_workload(SMALL), Machines({}, base="dgx-1").at({}))
    _, alone = fastest(composed("hotline", {"hotline": {"hot_mib": 512}}), start)
    assert found["step_us"][3] == pytest.approx(alone.results[0].step_us, rel=1e-9)
    rate = start.batch / alone.results[0].step_us * 1e6
    assert found["samples_per_s"][3] == pytest.approx(rate)


@pytest.mark.slow
def test_a_setting_of_whatever_design_a_point_has(tmp_path: Path) -> None:
    axes = "[axes]\nbatch = [65536]\ndesign.hbm_gb = [0.1, 2.0]"
    text = f'hardware = "dgx-h100"\ndesign = "recshard"\n{axes}'
    found = sweep(load_spec(written(tmp_path, text))).frame
    assert found["step_us"][0] != found["step_us"][1]


def test_what_does_not_fit_is_a_row_that_says_so(tmp_path: Path) -> None:
    text = '[axes]\nhardware = ["t4", "dgx-a100-80gb"]'
    found = sweep(load_spec(written(tmp_path, text, "criteo-terabyte")))
    assert found.failed == 1
    assert "GB more than the" in found.frame[ERROR][0]
    assert found.best() == {"step_us": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[axes]\nbatch = [1]", "hardware is missing"),
        ("[axes]\nspeed = [1]", "axis speed names nothing"),
        ("[axes]\nworkload.speed = [1]", "unknown key speed"),
        ('[axes]\nworkload = ["nothing"]', "unknown workload 'nothing'"),
        ('[axes]\ndesign = ["nothing"]', "unknown design 'nothing'"),
        ("[axes]\ndesign = [1]", "design: expected names of designs, got 1"),
        ("[axes]\nhotline.hot_mib = [1]", "not among the sweep's designs"),
        ('design = "hotline"\n[axes]\nhotline.speed = [1]', "hotline: unknown key speed"),
        ("[axes]\ndesign.hot_mib = [1]", "its design is missing"),
        ('[axes]\nworkload.implementation.sharding = ["by hand"]', "sharding: expected one of"),
    ],
)
def test_axes_that_name_nothing(tmp_path: Path, text: str, expected: str) -> None:
    hardware = "" if "hardware is missing" in expected else 'hardware = "dgx-1"\n'
    path = written(tmp_path, hardware + text)
    with pytest.raises(PerfmodelError, match=expected) as error:
        sweep(load_spec(path))
    assert str(error.value).startswith(str(path))


def test_a_figure_names_what_differs_along_its_front(tmp_path: Path) -> None:
    path = tmp_path / "batches.toml"
    path.write_text(
        'workload = "criteo-terabyte"\nobjective = ["step_us", "samples_per_s"]\n'
        '[axes]\nhardware = ["dgx-h100"]\nbatch = [8192, 16384]\n'
    )
    axes = sweep(load_spec(path)).plot().axes[0]
    assert {text.get_text() for text in axes.texts} == {"batch 8,192", "batch 16,384"}
    assert axes.get_legend().texts[0].get_text() == "Pareto front (2 of 2 points): dgx-h100"
