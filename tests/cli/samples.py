"""Small traces as files, and the command line in process."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
STEP_US = 100
KERNEL, ALL_REDUCE = "volta_sgemm_128x64_nn", "ncclKernel_AllReduce_RING_LL_Sum_float"


def event(category: str, name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    """A complete event on the main thread, unless `more` says otherwise."""
    body = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
    return body | {"ts": start, "dur": end - start, "args": {}} | more


def document(steps: int = 3, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
    """Steps of 100 us: two operators, each launches one kernel; the second is a collective."""
    events = []
    for at in range(steps):
        begun, call = 1000 + at * STEP_US, 10 * at
        events.append(event("user_annotation", f"ProfilerStep#{at}", begun, begun + STEP_US - 1))
        for number, (op, name) in enumerate((("aten::mm", KERNEL), ("c10d::all", ALL_REDUCE))):
            start, correlation = begun + 5 + 45 * number, call + number + 1
            args = {"correlation": correlation}
            work = args | {"device": 0, "stream": 7}
            events += [
                event("cpu_op", op, start, start + 20 + at),
                event("cuda_runtime", "cudaLaunchKernel", start + 5, start + 9, args=args),
                event("kernel", name, start + 15, start + 35, tid=7, pid=0, args=work),
            ]
    device = {"name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16_945_512_448, "numSms": 80}
    job = {"rank": rank, "world_size": world_size}
    return {"deviceProperties": [device], "distributedInfo": job, "traceEvents": events}


def write(path: Path, content: dict[str, Any]) -> Path:
    """A document as a file; gzip where the name says so."""
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def check_schema(name: str, answer: dict[str, Any]) -> None:
    """Fail where `answer` is not what `docs/schemas` promises."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(answer, schema, cls=jsonschema.Draft202012Validator)
    assert str(answer["schema"]).startswith(f"perfmodel.{name}/")
