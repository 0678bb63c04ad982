"""``python -m fedatoms`` is the command line, and so is the script ``fedatoms``."""

import os
import sys


def main() -> int:
    """Runs a command; Ctrl-C while its modules are imported costs one line, as it does later."""
    try:
        from fedatoms.cli import main as command

        return command()
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":  # of several processes, the first speaks for all
            print("fedatoms: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
