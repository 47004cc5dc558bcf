"""`perfmodel collect` is the collector's own command line."""

from __future__ import annotations

from cli.conftest import Run


def test_help_is_the_collectors(run: Run) -> None:
    ran = run("collect", "--help")
    assert ran.status == 0
    assert all(verb in ran.out for verb in ("kernels", "steps", "trace"))
    assert "--minutes" in run("collect", "kernels", "--help").out


def test_bad_usage_is_status_2(run: Run) -> None:
    ran = run("collect", "everything")
    assert ran.status == 2
    assert "invalid choice: 'everything'" in ran.err
