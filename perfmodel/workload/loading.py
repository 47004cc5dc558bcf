"""How long a host's data loading takes for a step."""

from __future__ import annotations

from perfmodel.units import BYTES_PER_GB, US_PER_S
from perfmodel.workload.counts import counts
from perfmodel.workload.model import Workload

FLOAT_BYTES, KEY_BYTES = 4, 8
"""Of dense features and labels, and of keys."""


def loading_us(workload: Workload, samples: float) -> float:
    """What one host's loader takes for `samples`, its part of a batch; 0 where nothing limits it.

    What it brings per sample is dense features, a label and a key per lookup, unless said.
    """
    loader = workload.loader
    of_batch = FLOAT_BYTES * (workload.model.dense_features + 1)
    size = loader.bytes_per_sample or of_batch + KEY_BYTES * counts(workload).lookups
    by_count = samples / loader.samples_per_s if loader.samples_per_s else 0.0
    by_size = samples * size / (loader.gb_per_s * BYTES_PER_GB) if loader.gb_per_s else 0.0
    return max(by_count, by_size) * US_PER_S
