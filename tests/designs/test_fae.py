"""FAE: steps of two kinds, what is learned before them, and from where on they pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from designs.hot_rows import predicted, start

from perfmodel.designs.composed import composed
from perfmodel.designs.popular_samples import Fae
from perfmodel.errors import WorkloadError
from perfmodel.prediction import predict


def test_steps_of_both_kinds_and_what_moves_between_them() -> None:
    fae = Fae(hot_mib=100, switch_every_steps=64)
    found = fae.apply(start())
    both = predicted(fae, start())
    hot, cold = found.phases
    single = [
        predict(found.with_(placement=phase.placement, pipeline=phase.pipeline, phases=())).results[
            0
        ]
        for phase in found.phases
    ]
    weighed = sum(
        phase.steps_frac * each.step_us for phase, each in zip(found.phases, single, strict=True)
    )
    assert hot.steps_frac + cold.steps_frac == pytest.approx(1)
    assert both.bound_by is not None
    switch_us = both.bound_by["switch"]
    assert both.step_us == pytest.approx(weighed + switch_us)
    pcie_us = 2 * hot.to_device_bytes / (found.machine.node.device.host_gb_per_s * 1e3)
    assert switch_us > pcie_us / 128
    rarely = predicted(replace(fae, switch_every_steps=640), start())
    assert rarely.step_us == pytest.approx(weighed + switch_us / 10)
    never_alone = replace(fae, switch_every_steps=0.01).apply(start()).phases[0]
    assert never_alone.run_steps >= 1
    path = both.critical_path
    assert [piece.name for piece in path] == ["popular", "other", "switch"]
    assert sum(piece.duration_us for piece in path) == pytest.approx(both.step_us)


def test_learning_on_fewer_inputs_finds_fewer_popular_samples() -> None:
    shares = [
        Fae(hot_mib=20, inputs=1e6, sampled_frac=frac).apply(start()).phases[0].steps_frac
        for frac in (0.001, 0.05, 1.0)
    ]
    assert shares[0] < shares[1] < shares[2]


def test_designs_on_top_of_steps_of_two_kinds_apply_to_both() -> None:
    found = composed("fae+low_precision").apply(start())
    assert len(found.phases) == 2
    dtypes = {table.dtype for phase in found.phases for table in phase.placement.tables}
    assert dtypes == {"fp16"}
    for text in ("hotline+fae", "fae+hotline"):
        with pytest.raises(WorkloadError, match="already split by hot rows"):
            composed(text).apply(start())


def test_inference_leaves_hot_rows_on_the_devices() -> None:
    """Nothing changes them, so that none goes back and comes again."""
    serving = replace(start(), train=False)
    phases = Fae(popular_frac=0.2).apply(serving).phases
    assert [phase.to_device_bytes for phase in phases] == pytest.approx([0.0, 0.0])
    assert Fae(popular_frac=0.2).apply(start()).phases[0].to_device_bytes > 0
