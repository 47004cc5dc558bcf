"""`python -m perfmodel.collect`: argparse only, so that it runs in any training image."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

try:
    from perfmodel.collect import kernels, modules, steps, trace
except ModuleNotFoundError as error:
    print(f"perfmodel: {error}: the collector needs NumPy and PyTorch", file=sys.stderr)
    sys.exit(2)
from perfmodel.collect.runs import Parser, say
from perfmodel.errors import ON_COMMAND_LINE, PerfmodelError

VERBS: dict[str, tuple[Any, str]] = {
    "kernels": (
        kernels,
        "time kernels of every family on this machine, the most informative shapes first",
    ),
    "modules": (
        modules,
        "time one call of modules in Python files, their host and device; the files are run",
    ),
    "steps": (steps, "time training steps of many DLRMs in turns, without the profiler"),
    "trace": (
        trace,
        "capture Kineto and execution traces of a reference model, with un-profiled step times",
    ),
}
EXIT_OK, EXIT_USAGE, EXIT_INTERRUPTED = 0, 2, 130


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m perfmodel.collect",
        description="Measure this machine. Needs PyTorch 2.2 or later and NumPy, nothing else.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (verb, purpose) in VERBS.items():
        options = verbs.add_parser(name, help=purpose, description=purpose)
        verb.add_arguments(options)
        options.add_argument("--debug", action="store_true", help="show tracebacks")
        options.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the collector on `argv`; the exit status.

    A termination signal is handled as Ctrl-C is: what was measured is kept.
    """
    arguments = build_parser().parse_args(argv)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    elsewhere = ON_COMMAND_LINE.set(True)
    try:
        arguments.run(arguments)
    except PerfmodelError as error:
        if arguments.debug:
            raise
        say(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        say("interrupted: what was measured is kept")
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)
        ON_COMMAND_LINE.reset(elsewhere)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
