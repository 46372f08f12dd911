"""The process of a study's cell: `comas` with the same arguments, which ends when its stdin does.

So that nothing is left running where the study was killed; whatever it was at can be gone on with.
"""

from __future__ import annotations

import os
import sys
import threading

from comas.exit_codes import STOPPED


def main() -> None:
    """Run the command line for as long as somebody holds the other end of stdin."""
    threading.Thread(target=_die_with_stdin, daemon=True).start()
    sys.argv[0] = "comas"
    from comas.cli import entry

    entry.main()


def _die_with_stdin() -> None:
    # not through sys.stdin, whose lock Python waits for when it ends
    while os.read(0, 4096):
        pass
    os._exit(STOPPED)


if __name__ == "__main__":
    main()
