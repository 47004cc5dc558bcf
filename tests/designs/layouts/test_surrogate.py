"""What the search's model has one shard take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.designs import deployment_of
from perfmodel.designs.layouts.problem import ways
from perfmodel.designs.layouts.surrogate import exchange_line, keys_us, lookup_us, missed_us, timed
from perfmodel.hardware import cluster
from perfmodel.workload import load_workload
from perfmodel.workload.tables import Table


def test_rows_over_the_bus_never_come_sooner_than_from_device_memory() -> None:
    own = deployment_of(load_workload("torchrec-golden"), cluster("dgx-h100"))
    first = [way for way in ways(own) if way.number == 0 and way.sharding != "data_parallel"]
    far = [replace(way, tier="host") for way in first]
    for samples in (8, 1024, 65_536):
        case = own.with_(batch=samples)
        assert (lookup_us(case, far) >= lookup_us(case, first)).all()
    many = own.with_(batch=65_536)
    assert lookup_us(many, far)[0] > 2 * lookup_us(many, first)[0]
    assert not missed_us(many, far).any()  # no cache misses


def test_the_ends_of_intervals_enclose_what_shards_take() -> None:
    own = deployment_of(load_workload("torchrec-golden"), cluster("dgx-h100"))
    here = tuple(way for way in ways(own) if way.number == 0)
    low, middle, high = (timed(own, here, end) for end in ("low_us", "duration_us", "high_us"))
    for part in ("work_us", "sent_us", "shared_us", "summed_us"):
        taken = [getattr(each, part) for each in (low, middle, high)]
        assert (np.diff(taken, axis=0) >= 0).all(), part
    assert (low.work_us < middle.work_us).all()


def test_replicas_are_work_of_every_rank_beside_their_sum() -> None:
    """Where no way but that is allowed, too: gradients and the optimizer are kernels, sums are not.
    In inference there is neither."""
    small = replace(load_workload("torchrec-golden"), tables=(Table(1000, 64, 2.0),) * 3)
    own = deployment_of(small, cluster("dgx-h100"))
    here = tuple(way for way in ways(own) if way.sharding == "data_parallel")
    trained, asked = (timed(replace(own, train=train), here) for train in (True, False))
    forward_us = lookup_us(replace(own, train=False), here)
    assert np.allclose(asked.work_us, forward_us, atol=1e-6)
    assert not asked.summed_us.any()
    assert not keys_us(own, here)[0].any()
    assert (trained.work_us > lookup_us(own, here)).all()
    assert (trained.summed_us > 0).all()


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_replicas_are_stepped_by_the_dense_optimizer(optimizer: str, states: int) -> None:
    """Rows, a gradient and the states of that, whatever steps sharded tables."""
    small = replace(load_workload("torchrec-golden"), tables=(Table(1000, 128, 2.0),))
    small = small.with_(training__dense_optimizer=optimizer, training__table_optimizer="adagrad")
    own = deployment_of(small, cluster("dgx-h100"))
    of = {way.sharding: way.size_bytes for way in ways(own)}
    assert of["data_parallel"] == 1000 * 128 * 4 * (2 + states)
    assert of["table_wise"] == 1000 * 128 * 4 * 2


def test_narrow_rows_are_copied_in_inference_where_their_gradients_are_too_large() -> None:
    """0.77 GB of rows in fp16 whose gradients take 1.54."""
    wide = replace(load_workload("torchrec-golden"), tables=(Table(3_000_000, 128, 2.0),))
    wide = wide.with_(implementation__table_precision="fp16")
    own = deployment_of(wide, cluster("dgx-h100"))
    copied = {
        train: any(way.sharding == "data_parallel" for way in ways(replace(own, train=train)))
        for train in (True, False)
    }
    assert copied == {True: False, False: True}


def test_columns_and_rows_send_the_keys_that_their_shards_look_up() -> None:
    """Each of four columns all keys, each of eight parts of rows an eighth, beside a length per
    sample. Columns send as much of rows in all as the whole table does."""
    table = Table(100_000, 128, 50.0)
    wide = replace(load_workload("torchrec-golden"), tables=(table,) * 8)
    own = deployment_of(wide, cluster("dgx-a100-80gb"))
    here = tuple(way for way in ways(own) if way.number == 0 and way.sharding != "data_parallel")
    keys_us_of, _ = keys_us(own, here)
    lookups = table.lookups(own.batch) * 8.0
    of = {(way.sharding, way.parts): keys_us_of[at] for at, way in enumerate(here)}
    whole = of["table_wise", 1]
    assert of["column_wise", 4] == whole
    assert of["row_wise", 8] / whole == pytest.approx(
        (lookups / 8 + own.batch * 4) / (lookups + own.batch * 4)
    )
    sent_us, of_keys_us = timed(own, here).sent_us
    assert of_keys_us == pytest.approx(keys_us_of)
    places = {key: at for at, key in enumerate(of)}
    one, four = (places[key] for key in (("table_wise", 1), ("column_wise", 4)))
    assert 4 * sent_us[four] == pytest.approx(sent_us[one], rel=1e-4)


def test_a_line_of_exchanges_begins_with_an_empty_message() -> None:
    """A second kind of exchange adds what an empty one takes, whatever the first carries."""
    machine = cluster("zionex", 16)
    lines = [exchange_line(machine, "duration_us", "all_to_all", 128, size) for size in (1e6, 1e8)]
    assert lines[0][0] == lines[1][0]
    assert 400 < lines[0][0] < 500


def test_sums_of_small_replicas_begin_with_what_an_empty_one_takes() -> None:
    small = replace(load_workload("torchrec-golden"), tables=(Table(1000, 128, 2.0),) * 3)
    own = deployment_of(small, cluster("dgx-a100-80gb"))
    here = tuple(way for way in ways(own) if way.sharding == "data_parallel")
    problem = timed(own, here)
    _, summed_us, _ = problem.shared(np.arange(len(here)))
    assert summed_us - problem.summed_us.sum() == pytest.approx(problem.fixed_us[-1])
    assert 20 < problem.fixed_us[-1] < 30
