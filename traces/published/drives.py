"""Measured points of drives: reads per second and latency with one and sixteen in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.cost.tiers.drives import BLOCK_BYTES, read_iops, read_latency_us
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.hardware import load
from perfmodel.hardware.parts import Storage

from .sdm_box import DRIVE_ASSUMED, DRIVE_POINTS

TOLERANCE_PCT = 15.0


def drive_in(lab: Lab, name: str) -> Storage:
    """The catalogue's drive, in a node as `lab` makes it."""
    machine = lab.machine("dgx-a100-80gb")
    drive = load(name, "storage")
    assert isinstance(drive, Storage)
    found = lab.change(replace(machine, node=replace(machine.node, storage=drive))).node.storage
    assert found is not None
    return found


@case("V11")
def points(lab: Lab) -> Iterator[Figure]:
    """Reads of 4 KiB at random places."""
    for name, (point, source) in DRIVE_POINTS.items():
        drive, depth = drive_in(lab, point.drive), point.in_flight
        if point.iops is not None:
            unit, target = "reads/s", point.iops
            predicted = float(read_iops(drive, depth, BLOCK_BYTES))
        else:
            assert point.latency_us is not None
            unit, target = "us", point.latency_us
            predicted = float(read_latency_us(drive, depth, BLOCK_BYTES))
        title = f"{point.drive}, {depth} in flight"
        figure = Figure(f"V11-{name}", title, unit, target, predicted, TOLERANCE_PCT, source)
        yield replace(figure, assumed=DRIVE_ASSUMED[source])
