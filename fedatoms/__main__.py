"""``python -m fedatoms`` is the command line."""

from fedatoms.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
