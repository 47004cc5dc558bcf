"""What `collect ops` trains: DLRMs that fill their space, and a few models of other kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import MODELS, Options, Ranks, Training, load_models
from perfmodel.collect.models.calibration import calibration_configs
from perfmodel.collect.models.dlrm import DISTINCT_BATCHES, train_dlrm
from perfmodel.collect.models.truths import TruthConfig, read_configs

OTHERS = (
    ("transformer", "mini", 4),
    ("resnet", "mini", 8),
    ("transformer", "mini", 16),
    ("resnet", "small", 2),
    ("transformer", "tiny", 8),
    ("resnet", "tiny", 16),
)
"""Model, preset and batch; one of them after every tenth DLRM."""
OTHER_EVERY = 10


@dataclass(frozen=True)
class Workload:
    """A model to train: `build` makes it, `held_bytes` is about what it keeps between steps."""

    name: str
    model: str
    build: Callable[[Backend], Training]
    held_bytes: int = 0
    dlrm: TruthConfig | None = None
    description: Any = None


def calibration_workloads(wanted: int) -> list[Workload]:
    """`wanted` workloads; every beginning of the list covers the space."""
    load_models()
    others = [_other(*other) for other in OTHERS]
    configs = islice(calibration_configs(), wanted)
    listed: list[Workload] = []
    for number, config in enumerate(configs, start=1):
        listed.append(dlrm_workload(config))
        if number % OTHER_EVERY == 0 and others:
            listed.append(others.pop(0))
    return listed[:wanted]


def workloads_of_file(path: Path) -> list[Workload]:
    """The DLRMs of a JSON file; `UsageError` where they cannot be used."""
    return [dlrm_workload(config) for config in read_configs(path)]


def dlrm_workload(config: TruthConfig) -> Workload:
    """The DLRM of `config`."""
    options = Options(preset=config.name, batch=config.batch, zipf_alpha=config.zipf_alpha)

    def build(backend: Backend) -> Training:
        return train_dlrm(backend, Ranks(), options, config.dlrm)

    return Workload(config.name, "dlrm", build, config.held_bytes(DISTINCT_BATCHES), config)


def _other(model: str, preset: str, batch: int) -> Workload:
    options = Options(preset=preset, batch=batch)

    def build(backend: Backend) -> Training:
        return MODELS[model](backend, Ranks(), options)

    return Workload(f"{model}_{preset}_b{batch}", model, build, description={"batch": batch})
