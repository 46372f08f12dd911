"""Where the command begins: Ctrl-C while its libraries load is one line, as it is later.

Run as a module it is the process of a study's cell, which ends when its stdin does: nothing is left
running where the study was killed, and whatever it was at can be gone on with. Leaves out: the
command line (`cli.main`), which is imported here and nowhere else.
"""

import os
import sys
import threading

from comas.exit_codes import STOPPED

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The variable by which torch asks Linux for pages of 2 MB. It is read at the first tensor."""


def main() -> None:
    """Import the command line, and run it."""
    # blocks come and go with each pass: the kernel took a quarter of the time to make their pages
    os.environ.setdefault(HUGE_PAGES, "1")
    try:
        from comas.cli import main as command_line  # most of a second
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(STOPPED) from None
    command_line.main()


def cell() -> None:
    """Run it for as long as somebody holds the other end of stdin."""

    def die_with_stdin() -> None:
        # not through sys.stdin, whose lock Python waits for when it ends
        while os.read(0, 4096):
            pass
        os._exit(STOPPED)

    threading.Thread(target=die_with_stdin, daemon=True).start()
    sys.argv[0] = "comas"
    main()


if __name__ == "__main__":
    cell()
