"""How far reading and breaking down are from the floor of typed decoding, stage by stage.

    python benchmarks/reading.py [--trace NAME ...] [--rounds 5]

Stages are cumulative: each holds what stands before it. Every figure is a ratio to the floor on
the same trace, in this process, measured as by `speed.py`. Traces are below
`$PERFMODEL_REFERENCE/traces`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.measure import REPO
from benchmarks.peers import TRACES, find_trace
from benchmarks.references import decoding
from benchmarks.rounds import Work, measure, on_one_thread
from benchmarks.tables import markdown


def stages(path: Path) -> Iterator[Work]:
    """From the file to the breakdown, each with all before it."""
    from perfmodel import breakdown, build_graph, read
    from perfmodel.base.files import read_bytes, read_chunks
    from perfmodel.cli import main
    from perfmodel.trace import link
    from perfmodel.trace.kineto import decode_kineto
    from perfmodel.trace.kineto_json import Document

    name = str(path)

    def decode() -> int:
        return sum(len(events) for events in Document(read_chunks(path), name))

    yield Work("gunzip", lambda: read_bytes(path), name)
    yield Work("typed records of all that is kept", decode, name)
    yield Work("columns", lambda: decode_kineto(read_chunks(path), name), name)
    yield Work("checks: `read`", lambda: read(path), name)
    yield Work("links", lambda: [link(rank) for rank in read(path).ranks], name)
    yield Work("graph", lambda: build_graph(read(path)), name)
    yield Work("`breakdown`", lambda: breakdown(read(path)), name)

    def command() -> int:
        with redirect_stdout(StringIO()):
            return main(["breakdown", name])

    yield Work("its tables, rates and gains: `perfmodel breakdown`", command, name)


def main() -> None:
    """Print a table: a row per stage, a column per trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", nargs="+", default=list(TRACES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    on_one_thread()
    reference = Path(os.environ.get("PERFMODEL_REFERENCE") or REPO.parent / "shared" / "data")
    columns = []
    for name in options.trace:
        path = find_trace(name, reference)
        columns.append(measure(stages(path), {str(path): decoding(path)}, options.rounds))
    lines = [
        [of_stage[0].name, *(f"{each.ratio:.2f}" for each in of_stage)]
        for of_stage in zip(*columns, strict=True)
    ]
    print(markdown(["up to", *options.trace], lines))


if __name__ == "__main__":
    main()
