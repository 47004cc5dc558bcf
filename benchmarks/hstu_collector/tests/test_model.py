"""The collector's sequential recommender and the workload file that describes it."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from hstu_collector.cases import CONTEXT
from hstu_collector.model import PRESETS, lengths_of, workload_file

import perfmodel
from perfmodel.collect.backend import open_backend
from perfmodel.collect.models import MODELS, Options
from perfmodel.workload.sequences import slowest_lengths


@pytest.mark.parametrize(("preset", "batch"), [("mlperf", 128), ("spread", 256), ("equal", 64)])
def test_sequences_are_those_of_the_workload_file(preset: str, batch: int, tmp_path: Path) -> None:
    config, path = PRESETS[preset], tmp_path / "hstu.toml"
    path.write_text(workload_file(preset, config, batch))
    workload = perfmodel.load_workload(path)
    lengths = lengths_of(config, batch) + CONTEXT
    expected = slowest_lengths(workload, batch, 1)
    assert lengths.sum() == expected.tokens == config.tokens(batch)
    assert lengths.std() == pytest.approx(config.length_std, rel=0.01)
    assert (lengths * (lengths + 1)).sum() / 2 == pytest.approx(expected.pairs, rel=0.01)
    assert lengths.max() <= config.longest


@pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch: pip install torch")
def test_it_trains_on_a_cpu() -> None:
    torch, backend = import_module("torch"), open_backend("cpu")
    training = MODELS["hstu"](backend, Options(preset="tiny", batch=4))
    model = training.step.__self__  # type: ignore[attr-defined]
    before, weight = model.tables[0].clone(), model.layers[0][1].weight.detach().clone()
    training.step(0)
    values, sizes, _ = model.batches[0]
    looked_up = torch.zeros(len(before), dtype=torch.bool)
    looked_up[values[: sizes[0]]] = True
    changed = (model.tables[0] != before).any(1)
    assert 0 < looked_up.sum() < len(before)
    assert changed.tolist() == looked_up.tolist()
    assert (model.layers[0][1].weight != weight).float().mean() > 0.9
    assert 'title = "HSTU tiny' in training.description["toml"]
