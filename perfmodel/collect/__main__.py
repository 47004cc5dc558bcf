"""`python -m perfmodel.collect`."""

import sys

if __name__ == "__main__":
    try:
        from perfmodel.collect.cli import main
    except ModuleNotFoundError as error:
        print(f"perfmodel: {error}: the collector needs NumPy and PyTorch", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
