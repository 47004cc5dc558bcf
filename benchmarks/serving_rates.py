"""DLRM-DCNv2 served by GPUs that hold all tables each: rates of MLPerf Inference, and predicted.

Measured: mlcommons/inference_results_v4.1@198fc467 (closed division, dlrm-v2-99.9), samples per
second, offline and server (99 % within 60 ms); a sample is 270.06 user-item pairs in the mean
(89,137,319 test samples in 330,067 queries, recalled). Predicted: fp16 layers of the training
software, tables in fp16 (int8 where these do not fit), one GPU by itself, times how many there are.

    python benchmarks/serving_rates.py
"""

from __future__ import annotations

from perfmodel.prediction import predict
from perfmodel.prediction.serving import Serving
from perfmodel.workload import Workload, load_workload

PAIRS = 89_137_319 / 330_067
P99_US = 60_000.0
MEASURED = (
    ("h100-sxm", 8, "fp16", 361_613, 340_067),
    ("h200-sxm", 8, "fp16", 390_953, 370_083),
    ("h100-pcie-80gb", 4, "fp16", 106_363, 100_010),
    ("h100-nvl", 4, "fp16", 123_033, 118_009),
    ("l40s", 4, "int8", 51_911, 51_015),
)
"""Device, how many, tables, samples per second offline and as a server: DGX H100, NVIDIA's H200,
Quanta's D54U with H100 PCIe and with L40S, Dell's R760xa with H100 NVL."""
UNSEEN = (("b200", 8, "fp16"), ("mi300x", 8, "fp16"), ("mi350x", 8, "fp16"))
BATCHES = (8_192, 16_384, 32_768, 65_536, 131_072, 262_144)


def rates(workload: Workload, device: str) -> tuple[float, float]:
    """Pairs per second of one GPU: offline, and with 99 % within 60 ms (queries of 270 pairs)."""
    offline = server = 0.0
    within = Serving(max_delay_us=None, p99_us=P99_US)
    for batch in BATCHES:
        found = predict(workload, hardware=device, batch=batch, train=False).results[0]
        offline = max(offline, batch / found.step_us * 1e6)
        served = within.served(round(batch / PAIRS), 1, lambda _, found=found: found)
        server = max(server, served.rate_per_s * PAIRS if served.p99_us else 0.0)
    return offline, server


def main() -> None:
    """A line per machine, in millions of pairs per second."""
    print("machine               offline: predicted  measured   server: predicted  measured")
    for device, count, tables, *measured in (*MEASURED, *UNSEEN):
        told = {"precision": "fp16", "table_precision": tables}
        changes = {f"implementation__{name}": value for name, value in told.items()}
        workload = load_workload("dlrm-dcnv2").with_(**changes)
        found = [count * rate / 1e6 for rate in rates(workload, device)]
        known = [rate * PAIRS / 1e6 for rate in measured] or [float("nan")] * 2
        print(
            f"{count} {device:18}{found[0]:20.1f}{known[0]:10.1f}{found[1]:20.1f}{known[1]:10.1f}"
        )


if __name__ == "__main__":
    main()
