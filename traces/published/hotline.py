"""Hotline and FAE over their baselines, at the centre of the registered box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfmodel.designs import Deployment, Design, deployment_of
from perfmodel.designs.baselines import Hybrid
from perfmodel.designs.popular_samples import Fae, Hotline
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.hardware import Cluster
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.workload import Workload, load_workload

from .hotline_box import (
    ASSUMED,
    CENTRE,
    CPU_MACHINE,
    FAE_BATCH,
    FAE_OVER_CPU,
    FAE_OVER_CPU_GPU,
    FAE_SOURCE,
    HOTLINE_BATCH,
    HOTLINE_OVER_HYBRID,
    HOTLINE_SOURCE,
    INPUTS,
    INTEL_ASSUMED,
    ORDER,
    SAMPLED_FRAC,
    SWITCH_EVERY_STEPS,
    TOLERANCE_PCT,
    XDL_ASSUMED,
    Setting,
)

SPEED_UP = "times as fast"
CHANGED_LATER = (
    "after the figures had been seen: updates cost what PyTorch's were measured to, one lookup "
    "after the other",
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


Steps = dict[str, dict[str, float]]
"""By workload and design, microseconds."""


def fae_steps(setting: Setting, lab: Lab) -> Steps:
    """FAE; the hybrid; CPUs alone, one process for each socket."""
    sockets, found = lab.machine(CPU_MACHINE), Steps()
    for name in FAE_BATCH:
        start = start_of(name, FAE_BATCH, setting, lab)
        found[name] = {
            "fae": step_us(fae_of(name, setting), start),
            "hybrid": step_us(Hybrid(), start),
            "cpu": lab.step(start.workload, sockets, batch=start.batch).step_us,
        }
    return found


def hotline_steps(setting: Setting, lab: Lab) -> Steps:
    """Hotline on FAE's workloads."""
    starts = {name: start_of(name, FAE_BATCH, setting, lab) for name in FAE_BATCH}
    return {
        name: {"hotline": step_us(hotline_of(setting), start)} for name, start in starts.items()
    }


def gains(faster: Steps, design: str, slower: Steps, baseline: str) -> dict[str, float]:
    """Per workload, how many times as fast a design is as a baseline."""
    return {name: slower[name][baseline] / own[design] for name, own in faster.items()}


@case("V13")
def hotline_and_fae(lab: Lab) -> Iterator[Figure]:
    """Means over the workloads; and who is faster than whom."""
    found = hotline_gains(CENTRE, lab)
    by_processes = _mean(hotline_gains(CENTRE, lab, Hybrid(pooled_on="operators")))
    yield _figure(
        "hotline",
        "Hotline over Intel's DLRM on CPU and GPUs",
        HOTLINE_OVER_HYBRID,
        found,
        HOTLINE_SOURCE,
        (
            *INTEL_ASSUMED,
            f"over a process per GPU: {by_processes:.2f} times",
            *ASSUMED,
            *CHANGED_LATER,
        ),
    )
    now = fae_steps(CENTRE, lab)
    for name, about, target in (
        ("cpu", "XDL on CPUs alone", FAE_OVER_CPU),
        ("hybrid", "XDL on CPU and GPUs", FAE_OVER_CPU_GPU),
    ):
        yield _figure(
            f"fae-{name}",
            f"FAE over {about}",
            target,
            gains(now, "fae", now, name),
            FAE_SOURCE,
            (*XDL_ASSUMED, *ASSUMED, *CHANGED_LATER),
        )
    ratios = {
        ("hotline", "fae"): gains(hotline_steps(CENTRE, lab), "hotline", now, "fae"),
        ("fae", "hybrid"): gains(now, "fae", now, "hybrid"),
    }
    for (faster, slower), ratio in ratios.items():
        yield _figure(
            f"{faster}-over-{slower}",
            f"{faster} is as fast as {slower}, or faster",
            ORDER,
            ratio,
            f"{HOTLINE_SOURCE}; {FAE_SOURCE}",
            (*ASSUMED, *CHANGED_LATER),
        )


def _figure(
    name: str,
    about: str,
    target: float | tuple[float, float],
    found: Mapping[str, float],
    source: str,
    assumed: tuple[str, ...],
) -> Figure:
    tolerance = 0.0 if isinstance(target, tuple) else TOLERANCE_PCT
    about = f"{about}, mean of {_each(found)}"
    return Figure(f"V13-{name}", about, SPEED_UP, target, _mean(found), tolerance, source, assumed)


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def _each(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())
