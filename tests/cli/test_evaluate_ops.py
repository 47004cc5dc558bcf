"""`perfmodel evaluate ops`."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Run
from cli.samples import check_schema

TIMINGS = """op,impl,gpu,batch,tables,rows_per_table,dim,pooling,dtype,phase,time_us
TBE,FBGEMM,A100,512,32,100000,128,20,fp32,fwd,138
TBE,FBGEMM,V100,512,32,100000,128,20,fp32,fwd,250
"""


def test_a_table_of_published_lookups(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "timings.csv"
    path.write_text(TIMINGS)
    ran = run("evaluate", "ops", "--lookups", path)
    assert (ran.status, "TBE fwd" in ran.out) == (0, True)
    answer = json.loads(run("evaluate", "ops", "--lookups", path, "--format", "json").out)
    check_schema("evaluation.ops", answer)
    assert [row["n"] for row in answer["rows"]] == [1, 1]
    assert answer["all"]["n"] == 2


def test_nothing_to_evaluate_is_an_error_that_says_what_to_name(run: Run) -> None:
    ran = run("evaluate", "ops")
    assert ran.status == 2
    assert "--lookups FILE" in ran.err
