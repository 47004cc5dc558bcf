"""`benchmarks/speed.py`: what a ratio is, what is kept of it, and when it is a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import rounds, speed
from benchmarks.rounds import Figure, Work
from benchmarks.works import works

ROOT = Path(__file__).parents[1]


def figure(name: str, ratio: float) -> Figure:
    return Figure(name, "python", ratio, 0.0, 1.0)


class Clock:
    """Processor time that only what is timed moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, *times_s: float) -> Callable[[], None]:
        """Takes these times in turn, then the last one for ever."""
        left = list(times_s)

        def run() -> None:
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_a_ratio_is_the_median_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rounds, "processor_s", clock)
    slow = clock.work(8, 8, 6, 80, 4)  # a warm-up, a trial, and a sample in each round
    found = rounds.measure([Work("a", slow, "b")], {"b": clock.work(8, 8, 2, 8, 4)}, 3)
    assert [(each.name, each.ratio, each.best_ms) for each in found] == [("a", 3.0, 4000)]


def test_a_reference_is_sampled_as_long_as_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = Clock(), Counter()
    monkeypatch.setattr(rounds, "processor_s", clock)
    short = clock.work(0.5)

    def reference() -> None:
        calls["reference"] += 1
        short()

    found = rounds.measure([Work("a", clock.work(2), "b")], {"b": reference}, 3)
    assert found[0].ratio == 4
    assert calls["reference"] == 2 + 3 * 4


def test_short_work_is_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rounds, "processor_s", clock)
    sample = rounds.Sampler(clock.work(rounds.MIN_S / 8))
    start_s = clock.now_s
    assert sample() == pytest.approx(rounds.MIN_S / 8)
    assert clock.now_s - start_s == pytest.approx(rounds.MIN_S)


def test_what_is_stored_takes_the_place_of_what_was(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    table = "| work | over | ratio |\n| --- | --- | --: |\n| a | python | 2 |\n| b | python | 1 |"
    path.write_text(f"before\n<!-- ratios -->\n{table}\n<!-- /ratios -->\nbehind\n")
    speed.store([figure("a", 3.0), figure("c", 12.345)], path)
    ratios = {("a", "python"): 3.0, ("b", "python"): 1.0, ("c", "python"): 12.3}
    assert speed.stored_ratios(path) == ratios
    assert path.read_text().startswith("before\n<!-- ratios -->\n| work |")
    assert path.read_text().endswith("<!-- /ratios -->\nbehind\n")


def test_slower_by_more_than_the_limit_is_a_warning() -> None:
    stored = {("a", "python"): 10.0, ("b", "python"): 10.0}
    figures = [figure("a", 13.1), figure("b", 12.9), figure("new", 99.0)]
    assert [each.name for each in speed.slower(figures, stored)] == ["a"]


def test_what_is_timed_is_stored(tmp_path: Path) -> None:
    timed = {(each.name, each.reference) for each in works(speed.DEMO, tmp_path)}
    assert timed == set(speed.stored_ratios()), "python benchmarks/speed.py --store"
