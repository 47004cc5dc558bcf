"""Every workload of the catalogue on 1 to 1,024 GPUs, trained and asked: how many are answered, do
not fit into memory, or are refused for another reason (none should be).

python -m benchmarks.layouts [WORKLOAD...] [--hardware NODE]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from perfmodel.errors import DoesNotFit, PerfmodelError
from perfmodel.hardware import Cluster, Node, cluster, load
from perfmodel.prediction import predict
from perfmodel.workload import load_workload, workloads

GPUS = (1, 4, 8, 32, 72, 128, 1024)
NODE = "dgx-a100-80gb"
ANSWERED, MEMORY, OTHER = "answered", "refused for memory", "refused for another reason"


@dataclass(frozen=True)
class Cell:
    """One case: what comes of it, the step or the refusal, and how long that took."""

    workload: str
    gpus: int
    train: bool
    kind: str
    told: object
    taken_s: float

    @property
    def said(self) -> str:
        """In words, of which what would do takes seconds."""
        return str(self.told)


def machine_of(gpus: int, hardware: str = NODE) -> Cluster:
    """So many GPUs: part of a node, or whole nodes."""
    node = load(hardware)
    assert isinstance(node, Node)
    if gpus <= node.gpus:
        return cluster(replace(node, gpus=gpus))
    return cluster(node, -(-gpus // node.gpus))


def cells(
    names: Sequence[str], counts: Sequence[int] = GPUS, hardware: str = NODE
) -> Iterator[Cell]:
    """Of each workload these numbers of GPUs, training and inference."""
    for name in names:
        for gpus in counts:
            for train in (True, False):
                begun = perf_counter()
                kind, told = _asked(name, machine_of(gpus, hardware), train)
                yield Cell(name, gpus, train, kind, told, perf_counter() - begun)


def _asked(name: str, machine: Cluster, train: bool) -> tuple[str, object]:
    try:
        found = predict(load_workload(name), hardware=[machine], train=train).results[0]
    except DoesNotFit as error:
        return MEMORY, error
    except PerfmodelError as error:
        return OTHER, error
    return ANSWERED, f"{found.step_us / 1e3:.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=workloads())
    parser.add_argument("--hardware", default=NODE)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    for it in cells(asked.names, hardware=asked.hardware):
        counts[it.kind] += 1
        what = "training" if it.train else "inference"
        print(f"{it.workload:24} {it.gpus:5} {what:9} {it.taken_s:5.1f} s  {it.kind}: {it.said}")
    print(", ".join(f"{kind}: {counts[kind]}" for kind in (ANSWERED, MEMORY, OTHER)))


if __name__ == "__main__":
    main()
