"""`python -m perfmodel.collect`."""

from perfmodel.collect.cli import main

raise SystemExit(main())
