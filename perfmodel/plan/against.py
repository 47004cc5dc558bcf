"""Why one plan's step is shorter than another's: what its busiest rank does, table by table."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.plan.planned import Plan

PARTS = {
    "busiest_us": "lookups and updates of the busiest rank",
    "exchange_us": "exchange of pooled rows",
    "summed_us": "sums of replicated tables' gradients",
}
NAMED = 3
"""Tables that are named, at most."""
US_PER_MS = 1e3


def differences(ours: Plan, theirs: Plan) -> Iterator[str]:
    """Lines, the largest difference first; parts are of the search's model, steps are not."""
    ratio = theirs.result.step_us / ours.result.step_us
    yield (
        f"{theirs.estimator}'s plan: {_ms(theirs.result.step_us)} per step, {ratio:.2f} times; "
        f"its busiest rank looks up {theirs.imbalance:.2f} times the mean"
    )
    more = {name: theirs.parts[name] - ours.parts[name] for name in PARTS}
    for name in sorted(more, key=lambda each: -abs(more[each])):
        if more[name]:
            yield f"{PARTS[name]}: {_ms(theirs.parts[name])} there, {_ms(ours.parts[name])} here"
    moved = [
        (theirs_row["added_us"] - ours_row["added_us"], ours_row, theirs_row)
        for ours_row, theirs_row in zip(ours.tables, theirs.tables, strict=True)
        if _way(ours_row) != _way(theirs_row)
    ]
    for gained, ours_row, theirs_row in sorted(moved, key=lambda each: -each[0])[:NAMED]:
        if gained > 0:
            yield (
                f"table {ours_row['table']} ({ours_row['rows']:,} rows of {ours_row['dim']}, "
                f"{ours_row['pooling']:g} lookups): {_way(theirs_row)} there, {_way(ours_row)} "
                f"here, which adds {gained:.3g} us less"
            )
    if len(moved) > NAMED:
        yield f"{len(moved)} tables lie in another way"


def _way(row: dict[str, object]) -> str:
    ranks = row["ranks"]
    assert isinstance(ranks, list)
    name = str(row["sharding"])
    name = name if len(ranks) == 1 else f"{name} x{len(ranks)}"
    return name if row["tier"] == "hbm" else f"{name} in {row['tier']} memory"


def _ms(value_us: float) -> str:
    return f"{value_us / US_PER_MS:.3f} ms"
