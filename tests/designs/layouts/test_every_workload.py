"""A layout exists wherever memory does: every workload of the catalogue on any number of GPUs is
answered, or does not fit into memory. `python -m benchmarks.layouts` prints all cells."""

from __future__ import annotations

import pytest

from benchmarks.layouts import ANSWERED, MEMORY, cells
from perfmodel.workload import workloads

LARGE = ("neo-a", "neo-f", "neo-i", "dlrm-v4-hstu", "nvidia-dlrm-extra-large", "smartnic-rm")
"""Of these, refusals that name what would do take seconds in all."""
IN_FAST, GPUS = 72, (1, 1024)
"""GPUs that the first test asks all others for, and those of the second."""


@pytest.mark.parametrize("name", [name for name in workloads() if name not in LARGE])
def test_more_ranks_than_tables_and_unequal_batches_are_answered(name: str) -> None:
    assert [it.said for it in cells([name], (IN_FAST,)) if it.kind != ANSWERED] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads())
def test_every_number_of_gpus_is_answered_or_lacks_memory(name: str) -> None:
    counts = sorted((*GPUS, IN_FAST)) if name in LARGE else GPUS
    found = list(cells([name], counts))
    assert [it.said for it in found if it.kind not in (ANSWERED, MEMORY)] == []
    assert all("what would do" in it.said for it in found[:1] if it.kind == MEMORY)
    for train in (True, False):  # more GPUs never fit less
        kinds = [it.kind for it in found if it.train == train]
        assert kinds == sorted(kinds, reverse=True)
    assert len(found) == 2 * len(counts)
