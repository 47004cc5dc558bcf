"""Settings of the figures of software-defined memory (V11, V14), fixed before the prediction.

Of Ardestani et al. (arXiv 2110.11489) only the abstract could be read: serving power falls by 5 to
29 %. Its three scenarios are recalled.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "Ardestani et al., arXiv 2110.11489, abstract: read; its models and hosts recalled"
SAVING_PCT = (5.0, 29.0)
"""What the abstract gives for serving power."""

READ_AMPLIFICATION = {512: 8.0, 128: 32.0}
"""Bytes of a row to the times as much that a drive with sectors of 4 KiB reads."""
AMPLIFICATION_SOURCE = "quoted from the paper by a third party: 128 to 512 B rows, 4 KiB blocks"


@dataclass(frozen=True)
class DrivePoint:
    """One measured point of a drive: reads of 4 KiB, so many in flight."""

    drive: str
    in_flight: int
    iops: float | None = None
    latency_us: float | None = None


REVIEW = "anandtech.com/show/11209 (P4800X review, page 4): read"
OTHER_REVIEW = "kitguru.net, Intel Optane DC P5800X review, page 7: read (74,875, one thread)"
DRIVE_POINTS = {
    "p4800x-qd1": (DrivePoint("p4800x", 1, iops=108_300), REVIEW),
    "p4800x-qd16": (DrivePoint("p4800x", 16, iops=584_800), REVIEW),
    "p4800x-qd16-latency": (DrivePoint("p4800x", 16, latency_us=25.5), REVIEW),
    "p3700-qd1": (DrivePoint("p3700", 1, iops=12_800), REVIEW),
    "p3700-qd16": (DrivePoint("p3700", 16, iops=167_200), REVIEW),
    "micron-9100-qd1": (DrivePoint("micron-9100-max", 1, iops=9_200), REVIEW),
    "micron-9100-qd16": (DrivePoint("micron-9100-max", 16, iops=135_700), REVIEW),
    "p5800x-qd1": (DrivePoint("p5800x", 1, iops=74_900), OTHER_REVIEW),
}
CURVE_ASSUMED = (
    "most reads per second: the maker's; the form of the curve was chosen with these points in "
    "view, it has no constant",
)
DRIVE_ASSUMED = {
    REVIEW: (
        "latency of one read: measured in the same review, its host's software in it; with one in "
        "flight reads per second are its inverse, no prediction",
        *CURVE_ASSUMED,
    ),
    OTHER_REVIEW: (
        "latency of one read: the maker's, recalled: 5 us (a third party quotes less than 6); what "
        "software takes per read on the reviewer's host is not modelled: 8.4 of 13.4 us, of which "
        "no source says more (Linux' driver and block layer were measured to add 2.3 us to SPDK's "
        "on another drive: spdk/spdk issue 661)",
        *CURVE_ASSUMED,
    ),
}


@dataclass(frozen=True)
class Scenario:
    """A fleet before and after: power and rate of one host, relative to the old one's.

    `beside_per_host` hosts of `beside_power` serve each old one (remote tables). `used_frac`:
    share of a host that can be used (memory-bound tenants leave the rest idle).
    """

    name: str
    new_power: float
    new_rate: float
    beside_per_host: float = 0.0
    beside_power: float = 0.0
    old_used_frac: float = 1.0
    new_used_frac: float = 1.0


SCENARIOS = (
    Scenario("m1", new_power=0.4, new_rate=0.5),
    Scenario("m2", new_power=1.0, new_rate=1.0, beside_per_host=0.2, beside_power=0.25),
    Scenario("m3", new_power=1.01, new_rate=1.0, old_used_frac=0.63, new_used_frac=0.90),
)
"""M1: two sockets with all tables in DRAM, to one socket with NAND; M2: an accelerator that needs
a fifth of a remote host for its tables, to the same with Optane; M3: tenants that fill DRAM before
they fill processors. Source: the paper's tables, recalled."""

USER_TABLES, USER_POOLING = 61, 42.0
ITEM_TABLES, ITEM_POOLING = 30, 9.0
MODEL_GB = 143.0
"""Model M1 of the paper, recalled."""
ROW_BYTES = 128
"""Assumed: int8 rows of 120 elements or so, with scale and offset."""
DRAM_CACHE_FRAC = 0.1
"""Assumed: a tenth of the tables on drives fits into the row cache."""
SKEW = 1.05
"""Assumed, as NVIDIA's synthetic models."""
DRIVE, DRIVES = "pm9a3", 2
OLD_HOST, OLD_SOCKETS, OLD_MEMORY_GB = "xeon-platinum-8168", 2, 256
NEW_HOST, NEW_SOCKETS, NEW_MEMORY_GB = "xeon-platinum-8168", 1, 64
"""Assumed: one kind of processor on both, so that the new host has half the cores."""
SDM_ASSUMED = (
    "host powers, rates and shares in use of the three scenarios: recalled from the paper",
    "M1: 61 user tables, 42 lookups each, one user per query; 30 item tables, 9 lookups, 50 items",
)
