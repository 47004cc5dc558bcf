"""Of every numeric setting of every design 0 is none: the step without it, or a line with the least
value that can be; from 0 on more is never slower."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from designs.test_settings import start

from perfmodel.base.schema import is_list
from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.composed import composed
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.prediction.compare import fastest
from perfmodel.workload import load_workload

Reference = Callable[[Deployment], Deployment]
AT = {"smartnic": "nic", "neo": "large", "low_precision": "dense"}
AT |= {"balanced_sequences": "sequences"}


def made(design: str, **changes: Any) -> Reference:
    return DESIGNS[design](**changes).apply


def uncached(design: str, **changes: Any) -> Reference:
    """The design, its caches taken away."""

    def apply(plain: Deployment) -> Deployment:
        found = DESIGNS[design](**changes).apply(plain)
        bare = found.placement.edited(lambda *_: {"caches": ()}, caches=())
        return found.with_(placement=bare)

    return apply


def as_it_is(plain: Deployment) -> Deployment:
    return plain


WITHOUT: dict[tuple[str, str], Reference] = {
    ("fae", "hot_mib"): made("hybrid"),
    ("fae", "popular_frac"): made("hybrid"),
    ("hotline", "hot_mib"): made("hybrid"),
    ("hotline", "popular_frac"): made("hotline", popular_frac=0.0, launches="as_they_come"),
    ("hotline", "learning_frac"): made("hotline", learning_frac=0.0),
    ("hybrid", "device_table_bytes"): made("hybrid"),
    ("low_precision", "ends_error"): made("low_precision", ends_error=1e-9),
    ("low_precision", "exchange_errors"): made("low_precision", exchange="keep"),
    ("low_precision", "layer_errors"): made("low_precision", layer_errors=(1e-9,)),
    ("low_precision", "table_errors"): made("low_precision", row_dtypes=("keep",)),
    ("neo", "cache_frac"): made("neo", cache_frac=0.0),
    ("recshard", "hbm_gb"): uncached("recshard", hbm_gb=1e-9),
    ("shared_cache", "kv_gib"): made("software_cache", cache_frac=1.0),
    ("smartnic", "cache_gib"): as_it_is,
    ("software_cache", "cache_frac"): uncached("software_cache"),
    ("software_memory", "cache_gib"): uncached("software_memory"),
    ("stashed_activations", "most_gib"): as_it_is,
    ("stashed_activations", "nodes_ahead"): made("stashed_activations", nodes_ahead=0),
}
"""What the step is at 0; of all others it is refused."""


def is_number(kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Annotated:
        return is_number(get_args(kind)[0])
    return kind in (int, float) or (origin is not None and any(map(is_number, get_args(kind))))


NUMBERS = [
    (name, each.name)
    for name in DESIGNS
    for each in fields(DESIGNS[name])  # type: ignore[arg-type]
    if is_number(get_type_hints(DESIGNS[name], include_extras=True)[each.name])
]


def step_us(deployment: Deployment) -> float:
    return predict(deployment).results[0].step_us


@pytest.mark.parametrize(("design", "key"), NUMBERS)
def test_zero_is_none(design: str, key: str) -> None:
    zero = (0.0,) if is_list(get_type_hints(DESIGNS[design], include_extras=True)[key]) else 0
    if (design, key) not in WITHOUT:
        with pytest.raises(WorkloadError, match=f"{design}.{key}: expected") as refused:
            made(design, **{key: zero})
        least = re.search(r"number from (\S+) to", str(refused.value))
        assert least is not None
        assert float(least[1]) > 0
        return
    plain = start(AT.get(design, "rm3"))
    found = made(design, **{key: zero})(plain)
    assert step_us(found) == step_us(WITHOUT[design, key](plain))
    if key in ("hot_mib", "cache_frac", "hbm_gb", "cache_gib"):
        assert not found.placement.caches
        assert not any(table.hot_rows for table in found.placement.tables)


def test_what_is_not_used_is_said() -> None:
    for name, at in (("fae", "rm3"), ("hotline", "rm3"), ("smartnic", "nic")):
        key = "cache_gib" if name == "smartnic" else "hot_mib"
        assert f"{name}.{key} 0" in made(name, **{key: 0})(start(at)).without_gain[-1]


SMALL = [
    ("fae", "hot_mib", (0.0, 1.0, 4.0)),
    ("hotline", "hot_mib", (0.0, 1.0, 4.0)),
    ("recshard", "hbm_gb", (0.0, 0.01, 0.1)),
    ("smartnic", "cache_gib", (0.0, 0.01, 0.1)),
    ("software_cache", "cache_frac", (0.0, 0.05, 0.2)),
    ("software_memory", "cache_gib", (0.0, 0.1, 0.4)),
]


@pytest.mark.parametrize(("design", "key", "values"), SMALL)
def test_from_none_on_more_is_never_slower(
    design: str, key: str, values: tuple[float, ...]
) -> None:
    plain = start(AT.get(design, "rm3"))
    steps = [
        fastest(composed(design, {design: {key: value}}), plain)[1].results[0].step_us
        for value in values
    ]
    assert steps == pytest.approx(sorted(steps, reverse=True), rel=1e-9)


def test_auto_is_all_that_there_is() -> None:
    plain = deployment_of(load_workload("hotline-rm2"), cluster("hotline-server"), 4_096)
    machine = made("cpu_only", nodes="auto", sockets="auto")(plain).machine
    assert (machine.nodes, machine.gpus) == (1, plain.machine.node.sockets)
    [remote] = made("smartnic", cache_gib="auto")(start("nic")).placement.caches
    nic = start("nic").machine.node.nic
    assert nic is not None
    assert nic.memory_bytes is not None
    assert remote.capacity_bytes == nic.memory_bytes / 2 / 2  # half of it, of that half others'


def test_operators_have_no_table_without_a_cache() -> None:
    with pytest.raises(WorkloadError, match="cache_frac from 1e-12, got 0"):
        made("software_cache", kept_by="operators", cache_frac=0.0)
