"""Whether the planner's surrogate orders plans as the full schedule does, on mixes of many tables.

    python -m benchmarks.plan_order [TABLES [PLANS [SEED]]]

Per machine: rank correlation (Spearman's) of both over random plans, then the step of the planner's
layout over that of the best layout by TorchRec's formulas. A random plan draws how often each
sharding is taken (so that plans differ, as a few hundred even draws would not), a way per table
with that, and its ranks, some of them several times as often as others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.plan import mix
from benchmarks.published.torchrec_formulas import torchrec_plan
from perfmodel.designs.layouts.problem import ANY, EVERY, Layout, Problem
from perfmodel.designs.layouts.search import placement_of
from perfmodel.designs.layouts.surrogate import problems
from perfmodel.errors import PerfmodelError
from perfmodel.explore.planner import plan_deployment
from perfmodel.hardware import cluster, load
from perfmodel.prediction import predict

MACHINES = (
    ("dgx-a100-80gb", 1, 8192),
    ("dgx-h100", 2, 4096),
    ("zionex", 4, 2048),
    ("dgx-a100-80gb", 1, 256),
)
"""Node, how many, samples per rank."""


def random_layouts(problem: Problem, draw: np.random.Generator) -> Iterator[Layout]:
    """Without end; those that do not fit are left out."""
    names = sorted({way.sharding for way in problem.ways})
    groups = np.arange(problem.ranks).reshape(-1, problem.linked)
    while True:
        share = dict(zip(names, draw.dirichlet(np.full(len(names), 0.5)), strict=True))
        busy = draw.dirichlet(np.full(problem.ranks, 10 ** draw.uniform(0, 2)))
        chosen, ranks = [], []
        for own in problem.of_table:
            weight = np.array([share[problem.ways[at].sharding] for at in own.tolist()]) + 1e-9
            way = int(draw.choice(own, p=weight / weight.sum()))
            chosen.append(way)
            parts, reach = int(problem.parts[way]), int(problem.reach[way])
            if reach == EVERY:
                place = np.arange(problem.ranks)
            elif reach == ANY:
                place = draw.choice(problem.ranks, parts, replace=False, p=busy)
            else:
                place = groups[draw.integers(len(groups))]
            ranks.append(tuple(sorted(place.tolist())))
        layout = Layout(problem, np.array(chosen), tuple(ranks))
        if layout.fits:
            yield layout


def main() -> None:
    from scipy.stats import spearmanr

    given = [int(text) for text in sys.argv[1:4]]
    tables, plans, seed = given + [300, 50, 1][len(given) :]
    for node, nodes, per_rank in MACHINES:
        start = mix(tables, seed, cluster(load(node, "node"), nodes), per_rank)
        made = next(problems(start))
        draw = np.random.default_rng(seed)
        pairs: list[tuple[float, float]] = []
        for layout in random_layouts(made, draw):
            placed = start.with_(placement=placement_of(start, layout))
            try:
                step_us = predict(placed).results[0].step_us
            except PerfmodelError:
                continue
            pairs.append((layout.step_us, step_us))
            if len(pairs) == plans:
                break
        order = spearmanr(*zip(*pairs, strict=True)).statistic
        steps = np.array(pairs)[:, 1] / 1e3
        ours = plan_deployment(start).result.step_us / 1e3
        theirs = torchrec_plan(start).step_us / 1e3
        print(
            f"{tables} tables on {nodes} x {node}, {per_rank} samples a rank: rank correlation "
            f"{order:.2f} over {plans} plans of {steps.min():.1f} to {steps.max():.1f} ms; "
            f"planned {ours:.2f} ms, TorchRec's {theirs:.2f} ms ({ours / theirs:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
