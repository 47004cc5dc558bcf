"""Lookups by the device in tables that lie in host memory: the work of `tbe`, rows over the bus."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.embedding import TBE_SPEC

HOST_BUS = "host_bus"

OPS.register("tbe_host")(
    replace(
        TBE_SPEC,
        family=HOST_BUS,
        other_directions={
            direction: replace(spec, family=HOST_BUS)
            for direction, spec in TBE_SPEC.other_directions.items()
        },
    )
)
