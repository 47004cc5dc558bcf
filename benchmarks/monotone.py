"""Whether kernels ever get faster on a worse device, or with more to do.

`python benchmarks/monotone.py [--shapes N] [--seed N]` draws shapes of every family and devices of
the catalogue at random. It halves one figure of the device (bandwidths of the memory, caches and
links, all rates of arithmetic, the clock alone, the clock with all that follows from it), or
enlarges one dim (twice; to the next larger aligned one of a random size up to four times), and
prints per family and change how many answers were compared, and how many fell by more than 1 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from perfmodel import hardware
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.rates import COMPUTE_DTYPE
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

SHAPES = 40
FALLS_FRAC = 0.01
ALIGNED = 64.0

_PEAKS = ("fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
_RATES = tuple(f"{name}_tflop_per_s" for name in _PEAKS)
_CACHES = ("l2_gb_per_s", "llc_gb_per_s")
WORSE: Mapping[str, tuple[str, ...]] = {
    "memory": ("hbm_gb_per_s",),
    "caches": _CACHES,
    "bytes of the last cache": ("l2_bytes",),
    "links": ("pcie_gb_per_s", "link_gb_per_s"),
    "rates": _RATES,
    "clock alone": ("boost_mhz", "max_sustained_mhz"),
    "clock": ("boost_mhz", "max_sustained_mhz", *_RATES, "l2_gb_per_s"),
}
"""What is halved together."""


@dataclass(frozen=True)
class Drawn:
    """How shapes of one op are drawn: log2 (least, most) of each dim, dtypes, and dims that are
    no matter of size."""

    op: str
    log2: Mapping[str, tuple[float, float]]
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    given: Mapping[str, float] | None = None
    aligned: float = ALIGNED
    directions: tuple[str, ...] = ("fwd",)
    also: Mapping[str, str] | None = None
    """Dims that are totals, and grow with another: as many lookups per bag, of more bags."""


_SIDES = {"m": (6.0, 13.0), "n": (6.0, 13.0), "k": (6.0, 13.0)}
_PLAIN = {"rows": (6.0, 14.0), "cols": (6.0, 13.0)}
_QUANTISED = ("fp8", "fp8_block", "nvfp4", "int8")
_TABLES = {"tables": (0.0, 6.0), "batch": (6.0, 14.0), "dim": (4.0, 8.0), "hash_size": (10.0, 24.0)}
DRAWN: Mapping[str, tuple[Drawn, ...]] = {
    "products": (
        Drawn("linear", _SIDES, ("fp32", "tf32", "fp16", "bf16")),
        Drawn("mm", _SIDES, ("fp32", "bf16")),
        Drawn("bmm", {"b": (2.0, 8.0), **dict.fromkeys("mnk", (5.0, 10.0))}, aligned=32.0),
    ),
    "products, fewer bits": (Drawn("linear", _SIDES, _QUANTISED),),
    "elementwise": (Drawn("add", _PLAIN), Drawn("gelu", _PLAIN), Drawn("mul_scalar", _PLAIN)),
    "norms, softmax": tuple(
        Drawn(op, _PLAIN) for op in ("softmax", "layer_norm", "rms_norm", "sum")
    ),
    "attention": (
        Drawn(
            "attention",
            {"b": (0.0, 6.0), "s": (7.0, 13.0), "heads": (2.0, 6.0)},
            ("bf16", "fp16", "fp8"),
            {"head_dim": 128.0},
        ),
    ),
    "convolution": (
        Drawn(
            "conv2d",
            {"batch": (0.0, 7.0), "in_channels": (6.0, 10.0), "out_channels": (6.0, 10.0)},
            ("fp32", "fp16"),
            {"kernel_size": 3.0, "input_size": 28.0, "stride": 1.0, "padding": 1.0},
            directions=("fwd", "bwd_data", "bwd_weight"),
        ),
    ),
    "lookups": (
        Drawn(
            "tbe",
            {**_TABLES, "lookups": (12.0, 20.0)},
            aligned=4.0,
            also={"tables": "lookups", "batch": "lookups"},
        ),
        Drawn(
            "embedding_bag",
            {name: _TABLES[name] for name in ("batch", "dim", "hash_size")}
            | {"pooling": (0.0, 6.0)},
            aligned=4.0,
        ),
    ),
    "movement": (
        Drawn("transpose_copy", _PLAIN),
        Drawn("embedding", _PLAIN),
        Drawn("copy_h2d", {"elements": (8.0, 26.0)}, ("fp32",)),
        Drawn("optimizer_adam", {"elements": (10.0, 28.0), "tensors": (0.0, 6.0)}, ("fp32",)),
    ),
    "sorts, jagged": (
        Drawn("sort", {"rows": (0.0, 4.0), "cols": (8.0, 20.0)}, ("int32",)),
        Drawn(
            "jagged_permute",
            {"elements": (12.0, 22.0), "segments": (6.0, 12.0)},
            ("fp32",),
            also={"segments": "elements"},
        ),
    ),
}
"""By family, as it is printed."""


def drawn(what: Drawn, count: int, generator: np.random.Generator, device: Device) -> pd.DataFrame:
    """`count` random rows of dtypes that `device` multiplies; sides that can be are aligned."""
    frame = pd.DataFrame({"op": [what.op] * count})
    known = [each for each in what.dtypes if device.multiplies(COMPUTE_DTYPE.get(each, each))]
    frame["dtype"] = generator.choice(known, count)
    frame["direction"] = generator.choice(what.directions, count)
    for name, (least, most) in what.log2.items():
        frame[name] = _aligned(2.0 ** generator.uniform(least, most, count), what, name)
    return frame.assign(**(what.given or {}))


def _aligned(sizes: np.ndarray, what: Drawn, name: str) -> np.ndarray:
    """Up to the next size that is aligned, where the dim is a side; whole numbers else."""
    step = what.aligned if 2.0 ** what.log2[name][0] >= what.aligned else 1.0
    return np.asarray(np.maximum(np.ceil(sizes / step) * step, 1.0))


def changes(
    what: Drawn, frame: pd.DataFrame, device: Device, generator: np.random.Generator
) -> Iterator[tuple[str, pd.DataFrame, Device]]:
    """(change, rows, device) of everything that must take as long at least."""
    for name, figures in WORSE.items():
        values = {each: getattr(device, each) for each in figures}
        halved = {each: value / 2.0 for each, value in values.items() if value is not None}
        if halved:
            yield f"half: {name}", frame, replace(device, **halved)
    for name in what.log2:
        more = frame[name] * 4.0 ** generator.uniform(0.0, 1.0, len(frame))
        sizes = {"twice a dim": 2.0 * frame[name], "a larger dim": _aligned(more, what, name)}
        for change, larger in sizes.items():
            grown = frame.assign(**{name: larger})
            if what.also and name in what.also:
                total = what.also[name]
                grown[total] = np.ceil(frame[total] * larger / frame[name])
            yield change, grown, device


Predict = Callable[[pd.DataFrame, Device], np.ndarray]


def predicted_us(frame: pd.DataFrame, device: Device) -> np.ndarray:
    """What ships."""
    return durations_of(Rows.from_frame(frame), device).duration_us


def falls(
    shapes: int, devices: list[Device], seed: int = 0, predict: Predict = predicted_us
) -> pd.DataFrame:
    """One row per answer compared: family, change, device, op, dtype, and `ratio` of the answer
    after the change to that before."""
    found = []
    for place, (family, each) in enumerate(DRAWN.items()):
        for number, what in enumerate(each):
            for device in devices:
                generator = np.random.default_rng([seed, place, number])
                frame = drawn(what, shapes, generator, device)
                before = predict(frame, device)
                for change, rows, changed in changes(what, frame, device, generator):
                    ratio = predict(rows, changed) / before
                    found.append(
                        frame[["op", "dtype"]].assign(
                            family=family, change=change, device=device.name, ratio=ratio
                        )
                    )
    return pd.concat(found, ignore_index=True)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Per family and change: how many fell by more than 1 %, and how many were compared."""
    fell = found.assign(fell=found["ratio"] < 1.0 - FALLS_FRAC)
    table = fell.groupby(["family", "change"], sort=False)["fell"].agg(["sum", "size"])
    texts = table["sum"].astype(str) + " of " + table["size"].astype(str)
    return texts.unstack().reindex(columns=list(dict.fromkeys(found["change"])))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=SHAPES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=12)
    asked = parser.parse_args()
    gpus = [each for each in hardware.devices() if each.target != "cpu"]
    chosen = np.random.default_rng(asked.seed).choice(len(gpus), asked.devices, replace=False)
    devices = [gpus[place] for place in sorted(chosen)]
    found = falls(asked.shapes, devices, asked.seed)
    print(", ".join(each.name for each in devices))
    print(summary(found).to_string())
    fell = found["ratio"] < 1.0 - FALLS_FRAC
    print(f"{fell.sum()} of {len(found)} answers fell by more than 1 %")


if __name__ == "__main__":
    main()
