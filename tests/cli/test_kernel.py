"""`perfmodel kernel`."""

from __future__ import annotations

import json
import re

import pytest
from cli.conftest import Run
from cli.samples import check_schema

LINEAR = ("kernel", "linear", "m=4096", "n=1024", "k=479")
SERVED = ("b=1", "s=8", "heads=32", "head_dim=64", "--hardware", "h100-sxm")


def test_one_kernel_on_two_devices(run: Run) -> None:
    ran = run(*LINEAR, "--hardware", "h100-sxm", "--hardware", "v100-sxm2-16gb", "--format", "json")
    answer = json.loads(ran.out)
    check_schema("kernel", answer)
    fast, slow = answer["results"]
    assert (fast["hardware"], slow["hardware"]) == ("h100-sxm", "v100-sxm2-16gb")
    assert fast["flop"] == 2 * 4096 * 1024 * 479
    assert fast["low_us"] <= fast["duration_us"] <= fast["high_us"]
    assert fast["duration_us"] < slow["duration_us"]


def test_a_table_says_why(run: Run) -> None:
    ran = run(*LINEAR, "dtype=fp16", "--hardware", "h100-sxm")
    assert ran.status == 0
    assert "4.018 GFLOP" in ran.out
    assert "bound by" in ran.out
    assert "gpu/matmul/" in ran.out


@pytest.mark.parametrize("columns", [80, 200])
def test_the_largest_terms_in_order(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Twenty in one line were no answer; all are in the JSON."""
    monkeypatch.setenv("COLUMNS", str(columns))
    words = (*LINEAR, "dtype=fp16", "--hardware", "h100-sxm")
    terms = json.loads(run(*words, "--format", "json").out)["results"][0]["terms"]
    out = run(*words, "-v").out
    told = out[out.index("learned (") :]
    lines = told[: told.index(" (--format json)")].splitlines()
    assert max(map(len, lines)) <= columns
    shown = re.findall(r"(\w+) ([\d,]+\.\d+)", " ".join(lines[1:]))
    times = [name for name, _ in shown if name.endswith("_us")]
    assert times == sorted((n for n in terms if n.endswith("_us")), key=lambda n: -terms[n])[:5]
    assert f"and {len(terms) - len(shown)} more" in " ".join(lines)
    assert all(float(value) == pytest.approx(terms[name], abs=5e-4) for name, value in shown)


def test_no_calls_take_no_time(run: Run) -> None:
    answer = run("kernel", "host_view", "count=0", "--hardware", "generic-cpu", "--format", "json")
    result = json.loads(answer.out)["results"][0]
    assert (result["duration_us"], result["utilisation_frac"]) == (0.0, 0.0)


def test_the_usual_direction_is_one_that_the_op_has(run: Run) -> None:
    ran = run("kernel", "optimizer_sgd", "elements=8", "tensors=1", "--hardware", "h100-sxm")
    assert "optimizer_sgd fp32 update" in ran.out


def test_no_skew_is_too_steep(run: Run) -> None:
    """A warning of NumPy would be an error here."""
    dims = ("hash_size=1000", "dim=64", "pooling=8", "batch=8")
    answers = [
        run("kernel", "embedding_bag", *dims, f"zipf_alpha={alpha}", "--hardware", "h100-sxm").out
        for alpha in ("70", "1e15")
    ]
    assert answers[0].splitlines()[2:] == answers[1].splitlines()[2:] != []


def test_without_an_op_the_vocabulary_is_listed(run: Run) -> None:
    answer = json.loads(run("kernel", "--format", "json").out)
    check_schema("kernel", answer)
    ops = {op["op"]: op for op in answer["ops"]}
    assert ops["linear"]["dims"] == ["m", "n", "k"]
    assert ops["linear"]["family"] == "matmul"
    assert "embedding_bag" in run("kernel").out


def test_csv_has_a_row_per_device(run: Run) -> None:
    lines = run(*LINEAR, "--hardware", "h100-sxm", "--format", "csv").out.splitlines()
    assert lines[0].startswith("hardware,duration_us,low_us,high_us,model")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linaer", "m=1", "--hardware", "h100-sxm"), "unknown op 'linaer'; nearest: linear"),
        (("linear", "m=1", "n=2"), "name the device"),
        (("linear", "m=1", "n=2", "--hardware", "h100-sxm"), "k is missing; it needs m, n, k"),
        (("linear", "m=1", "q=2", "--hardware", "h100-sxm"), "'q=2': expected NAME=VALUE of m, n"),
        (("linear", "m=1", "m=2", "--hardware", "h100-sxm"), "m is given twice"),
        ((*LINEAR[1:4], "k=1e99", "--hardware", "h100-sxm"), "k is 1e+99; expected at most 1e+15"),
        ((*LINEAR[1:], "dtype=fp3", "--hardware", "h100-sxm"), "unknown dtype 'fp3'"),
        ((*LINEAR[1:], "b=0", "--hardware", "h100-sxm"), "b is missing; expected at least 1"),
        ((*LINEAR[1:], "b=1e-320", "--hardware", "h100-sxm"), "expected 0 or at least 1e-15"),
        (("linear", "m=many", "--hardware", "h100-sxm"), "'m=many': expected a number"),
        (("linear", "direction=up", "--hardware", "h100-sxm"), "m is missing"),
        ((*LINEAR[1:], "direction=up", "--hardware", "h100-sxm"), "direction 'up'; one of fwd"),
        (("attention", *SERVED, "kv_heads=5"), "expected heads % maximum(kv_heads, 1) == 0"),
        ((*LINEAR[1:], "--hardware", "connectx-7"), "expected a device, a node or a cluster"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = run("kernel", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_framework_changes_the_answer(run: Run) -> None:
    row = ("kernel", "linear", "m=64", "n=4096", "k=4096", "dtype=fp8", "--format", "json")
    row += ("--hardware", "h100-sxm")

    def asked(*words: str) -> dict[str, float]:
        found: dict[str, float] = json.loads(run(*row, *words).out)["results"][0]
        return found

    unknown, one, other = asked(), asked("framework=trtllm"), asked("framework=vllm")
    assert len({each["duration_us"] for each in (unknown, one, other)}) == 3


def test_an_unknown_framework_is_named(run: Run) -> None:
    ran = run(*LINEAR, "framework=jax", "--hardware", "h100-sxm")
    assert ran.status == 2
    assert "framework 'jax'; one of trtllm, vllm, sglang, torch" in ran.err
