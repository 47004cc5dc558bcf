"""Tables in device memory: one table-batched lookup, the update fused into its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.batched import Batched, batched, look_up
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged, offsets
from perfmodel.workload.tables import lookups
from perfmodel.workload.tiered.source import TIERED, Group


@dataclass(frozen=True)
class InDevice:
    """See `source.Source`."""

    tables: Batched

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.tables.weights,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Nothing: all rows are there."""

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        about = lookups(group.tables, group.samples).to_attributes()
        tables = with_attributes(self.tables, about)
        return look_up(r, tables, keys.values, offsets(r, keys), group.samples)


def with_attributes(tables: Batched, about: dict[str, str]) -> Batched:
    """The operator, its lookups described by `about`."""
    from dataclasses import replace

    return replace(tables, attributes={**tables.attributes, **about})


@TIERED.register("hbm")
def in_device(r: Recorder, group: Group) -> InDevice:
    """Weights in device memory."""
    return InDevice(table_batched(r, group))


def table_batched(r: Recorder, group: Group) -> Batched:
    """The tables of a group as one operator."""
    tables = group.tables
    return batched(
        r,
        tuple(table.rows for table in tables),
        tuple(table.dim for table in tables),
        dtype=group.placed.dtype,
        optimizer=group.run.workload.training.table_optimizer,
        is_modern=True,
        attributes=lookups(tables, group.samples).to_attributes(),
    )
