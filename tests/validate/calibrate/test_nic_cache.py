"""The fit of the adapter's cache model: small sweeps, trees that learn what closed forms miss."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.nic_cache import CACHED_FRAC, document_of, sweep
from perfmodel.workload.adapter_hits import BUNDLED, SCHEMA, bundled


def test_trees_learn_what_replays_say() -> None:
    seen = sweep((0.8,), every=29)
    assert seen.features.shape == (len(seen.alpha), 10)
    assert len(seen.alpha) % len(CACHED_FRAC) == 0
    assert ((seen.hit_frac >= 0) & (seen.hit_frac <= 1)).all()
    document = document_of(seen, seen)
    found = document["fitted_to"]["held_out_absolute_errors"]
    assert found["learned"]["p90"] < found["closed_form"]["p90"]
    assert document["schema"] == SCHEMA
    assert json.loads(json.dumps(document)) == document


def test_the_bundled_model_says_what_it_was_fitted_to() -> None:
    document = json.loads(BUNDLED.read_text())
    about = document["fitted_to"]
    assert not set(about["alphas"]) & set(about["held_out_alphas"])
    held_out = about["held_out_absolute_errors"]
    assert held_out["learned"]["median"] < 0.01
    assert held_out["learned"]["p90"] < held_out["closed_form"]["p90"]
    assert held_out["learned"]["worst"] < held_out["closed_form"]["worst"]
    assert np.isfinite(bundled().value).all()
    assert BUNDLED.stat().st_size < 200_000


def test_a_replay_of_more_memory_finds_more() -> None:
    found = sweep((0.8,), every=75)
    for hits in found.hit_frac.reshape(-1, len(CACHED_FRAC)):
        assert (np.diff(hits) >= 0).all()
