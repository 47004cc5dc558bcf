"""`python -m perfmodel`: the same as `perfmodel`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

INTERRUPTED = 130
OBJECTS_A_SEARCH = 100_000
"""What Python makes before it searches for cycles: nearly all objects here stay, and with its own
700 the search takes a tenth of a breakdown or a comparison."""


def run() -> int:
    """The command line in a process of its own."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # who started it has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as it runs
    with suppress(AttributeError, ValueError):  # a terminal that cannot show all characters
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr, unused-ignore]
    os.environ.pop("MPLBACKEND", None)  # figures are drawn without one, and an unknown one stops it
    gc.set_threshold(OBJECTS_A_SEARCH, 50, 100)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves nothing half-written
    try:
        from perfmodel.cli import main
    except KeyboardInterrupt:  # it takes a second to load: a user may have thought better of it
        return INTERRUPTED
    asked = sys.argv[1:2] in (["--install-completion"], ["--show-completion"])
    if asked or "_PERFMODEL_COMPLETE" in os.environ:  # a shell asks which words may follow
        from typer.completion import completion_init  # type: ignore[attr-defined]

        from perfmodel.cli import application

        completion_init()
        application()(prog_name="perfmodel")  # ends the process
    status = main()
    # At exit Python would search all that was read for cycles, a tenth of a breakdown; bindings of
    # PyTorch's libraries would call what is left a leak.
    if "torch" not in sys.modules:
        gc.freeze()
    return status


if __name__ == "__main__":
    sys.exit(run())
