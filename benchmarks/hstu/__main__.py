"""`python -m benchmarks.hstu VERB`: the collector, and in it `--model hstu`, `--families hstu`."""

from importlib import import_module

from perfmodel.collect import arguments
from perfmodel.collect.cli import main

if __name__ == "__main__":
    for registered in ("family", "model"):
        import_module(f"benchmarks.hstu.{registered}")
    arguments.COMMAND[-1] = "benchmarks.hstu"
    raise SystemExit(main())
