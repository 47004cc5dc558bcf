"""Hotline and FAE over their baselines, at the centre of the registered box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from perfmodel.designs import Deployment, Design, deployment_of
from perfmodel.designs.fae import Fae
from perfmodel.designs.hotline import Hotline
from perfmodel.designs.hybrid import Hybrid
from perfmodel.hardware import Cluster
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.validate.designs.figures import CASES, Figure
from perfmodel.validate.designs.hotline_box import (
    ASSUMED,
    CENTRE,
    CPU_MACHINE,
    FAE_BATCH,
    FAE_EARLIER_SOURCE,
    FAE_OVER_CPU,
    FAE_OVER_CPU_GPU,
    FAE_OVER_REPOSITORY,
    FAE_SOURCE,
    HOTLINE_BATCH,
    HOTLINE_OVER_HYBRID,
    HOTLINE_SOURCE,
    INPUTS,
    INTEL_ASSUMED,
    ORDER,
    REPOSITORY_ASSUMED,
    REPOSITORY_WORKLOADS,
    SAMPLED_FRAC,
    SWITCH_EVERY_STEPS,
    TOLERANCE_PCT,
    XDL_ASSUMED,
    Setting,
)
from perfmodel.validate.designs.lab import Lab
from perfmodel.workload import Workload, load_workload

SPEED_UP = "times as fast"
UPDATES_LATER = (
    "after the figures had been seen: updates cost what PyTorch's were measured to, one lookup "
    "after the other",
)
CHANGED_LATER = (
    *UPDATES_LATER,
    "after the figures had been seen: one process serves all GPUs, as in FAE's repository",
)
"""What was modelled after the box had been fixed, and its figures seen."""


def machine_of(setting: Setting, lab: Lab) -> Cluster:
    """The server with the setting's GPUs and memory rate."""
    found = lab.machine(setting.machine, gpus=setting.gpus)
    host = found.node.host
    scaled = host.dram_gb_per_s * setting.dram_gb_per_s / CENTRE.dram_gb_per_s
    return replace(found, node=replace(found.node, host=replace(host, dram_gb_per_s=scaled)))


def workload_of(name: str, setting: Setting) -> Workload:
    """The box's workload with the setting's skew."""
    return load_workload(name).with_(table__alpha=setting.alpha)


def start_of(name: str, batches: Mapping[str, int], setting: Setting, lab: Lab) -> Deployment:
    """What designs are applied to; the batch grows with the GPUs."""
    batch = round(batches[name] * setting.batch_factor * setting.gpus / CENTRE.gpus)
    return deployment_of(workload_of(name, setting), machine_of(setting, lab), batch)


def step_us(design: Design, start: Deployment) -> float:
    """The period of a step under a design."""
    return predict_deployment(design.apply(start)).results[0].step_us


def hotline_of(setting: Setting) -> Hotline:
    """Hotline with the setting's budget."""
    return Hotline(hot_mib=setting.hotline_mib)


def fae_of(name: str, setting: Setting) -> Fae:
    """FAE as it learns on a workload's inputs."""
    return Fae(
        hot_mib=setting.fae_mib,
        sampled_frac=SAMPLED_FRAC[name],
        inputs=INPUTS[name],
        switch_every_steps=SWITCH_EVERY_STEPS,
    )


def hotline_gains(setting: Setting, lab: Lab, hybrid: Hybrid | None = None) -> dict[str, float]:
    """Per workload, how many times as fast Hotline is as the hybrid."""
    return {
        name: step_us(hybrid or Hybrid(), start) / step_us(hotline_of(setting), start)
        for name in HOTLINE_BATCH
        for start in (start_of(name, HOTLINE_BATCH, setting, lab),)
    }


def fae_steps(setting: Setting, lab: Lab) -> dict[str, dict[str, float]]:
    """Per workload the steps of FAE, of Hotline, of the hybrid and of CPUs alone, microseconds."""
    start = partial(start_of, batches=FAE_BATCH, setting=setting, lab=lab)
    cpus = lab.machine(CPU_MACHINE)
    return {
        name: {
            "fae": step_us(fae_of(name, setting), start(name)),
            "hotline": step_us(hotline_of(setting), start(name)),
            "hybrid": step_us(Hybrid(), start(name)),
            "cpu": lab.step(workload_of(name, setting), cpus, batch=start(name).batch).step_us,
        }
        for name in FAE_BATCH
    }


@CASES.register("V13")
def hotline_and_fae(lab: Lab) -> Iterator[Figure]:
    """Means over the workloads; and who is faster than whom."""
    gains = hotline_gains(CENTRE, lab)
    by_processes = _mean(hotline_gains(CENTRE, lab, Hybrid(pooled_on="operators")))
    yield Figure(
        "V13-hotline",
        f"Hotline over Intel's DLRM on CPU and GPUs, mean of {_each(gains)}",
        SPEED_UP,
        HOTLINE_OVER_HYBRID,
        _mean(gains),
        TOLERANCE_PCT,
        HOTLINE_SOURCE,
        (
            *INTEL_ASSUMED,
            f"over a process per GPU: {by_processes:.2f} times",
            *ASSUMED,
            *CHANGED_LATER,
        ),
    )
    steps = fae_steps(CENTRE, lab)
    faster = {key: own["cpu"] / own["fae"] for key, own in steps.items()}
    yield Figure(
        "V13-fae-cpu",
        f"FAE over XDL on CPUs alone, mean of {_each(faster)}",
        SPEED_UP,
        FAE_OVER_CPU,
        _mean(faster),
        TOLERANCE_PCT,
        FAE_SOURCE,
        (*XDL_ASSUMED, "a rank per socket: registered", *ASSUMED, *UPDATES_LATER),
    )
    faster = {key: own["hybrid"] / own["fae"] for key, own in steps.items()}
    yield Figure(
        "V13-fae-hybrid",
        f"FAE over XDL on CPU and GPUs, mean of {_each(faster)}",
        SPEED_UP,
        FAE_OVER_CPU_GPU,
        _mean(faster),
        TOLERANCE_PCT,
        FAE_SOURCE,
        (*XDL_ASSUMED, *ASSUMED, *CHANGED_LATER),
    )
    faster = {key: faster[key] for key in REPOSITORY_WORKLOADS}
    yield Figure(
        "V13-fae-repository",
        f"FAE over its repository on CPU and GPUs, mean of {_each(faster)}",
        SPEED_UP,
        FAE_OVER_REPOSITORY,
        _mean(faster),
        TOLERANCE_PCT,
        FAE_EARLIER_SOURCE,
        (*REPOSITORY_ASSUMED, *ASSUMED, *CHANGED_LATER),
    )
    for faster_name, slower in (("hotline", "fae"), ("fae", "hybrid")):
        ratio = {key: own[slower] / own[faster_name] for key, own in steps.items()}
        yield Figure(
            f"V13-{faster_name}-over-{slower}",
            f"{faster_name} is as fast as {slower}, or faster: mean of {_each(ratio)}",
            SPEED_UP,
            ORDER,
            _mean(ratio),
            0.0,
            f"{HOTLINE_SOURCE}; {FAE_SOURCE}",
            (*ASSUMED, *CHANGED_LATER),
        )


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def _each(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())
