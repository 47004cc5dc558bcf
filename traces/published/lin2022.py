"""Lin et al. (HiPC 2022): their formulas, and what host overheads change."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from perfmodel.cost.models import lin2022
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.units import US_PER_MS

TOLERANCE_PCT = 1e-3
FORMULAS = "exact: owensgroup/ml_perf_model, analysis/inference.py, its functions called"
LOOKUP = lin2022.Lookup(batch=2048, rows=1_000_000, tables=8, pooling=100, dim=64)
"""The lookups of DLRM_default at batch 2,048."""
MEASURED_MS = {"default": 4.57, "mlperf": 4.57, "ddp": 5.0}
"""One step at batch 512 on a V100. Source: owensgroup/ml_perf_model, analysis/notebooks/
e2e_plot.ipynb (2023-04-02), read off a figure to 0.1 ms."""
STEPS = (
    "owensgroup/ml_perf_model, analysis/notebooks/e2e_plot.ipynb: batch 512, one V100; times read "
    "off a figure to 0.1 ms"
)


@case("V8")
def formulas(lab: Lab) -> Iterator[Figure]:
    """Forward and backward time of lookups by the paper's formulas on its V100."""
    gpu, warps = lin2022.V100, lin2022.FBGEMM_WARPS
    golden = {
        "forward": (608.288, lin2022.forward_us(LOOKUP, gpu, warps)),
        "forward-naive": (558.517, lin2022.forward_simple_us(LOOKUP, gpu)),
        "backward": (1040.29, lin2022.backward_us(LOOKUP, gpu, None)),
    }
    for name, (target, predicted) in golden.items():
        title = f"lookups of DLRM_default, {name}"
        yield Figure(f"V8-{name}", title, "us", target, predicted, TOLERANCE_PCT, FORMULAS)


@case("V9")
def overheads(lab: Lab) -> Iterator[Figure]:
    """Errors of three steps, of the kernels alone and with host overheads."""
    machine = lab.machine("v100-sxm2-16gb")
    alone, whole = [], []
    for name, measured_ms in MEASURED_MS.items():
        found = lab.step(f"lin-dlrm-{name}", machine, batch=512)
        alone.append((found.rank.gpu_active_us / US_PER_MS / measured_ms - 1) * 100)
        whole.append((found.step_us / US_PER_MS / measured_ms - 1) * 100)
    profile = "host overheads of other machines' profiles, shared by all three"
    about = (0.0, STEPS, (profile,))
    title = "mean error of three steps, kernels alone"
    yield Figure("V9-kernels-only", title, "%", (-72.0, -41.0), fmean(alone), *about)
    title = "mean absolute error of three steps, with host overheads"
    yield Figure("V9-with-overheads", title, "%", (0.0, 20.0), fmean(map(abs, whole)), *about)
