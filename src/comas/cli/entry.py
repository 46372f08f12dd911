"""Where the command begins: Ctrl-C while its libraries load is one line, as it is later.

Leaves out: the command line (`cli.main`), which is imported here and nowhere else.
"""

import sys


def main() -> None:
    """Import the command line, and run it."""
    try:
        from comas import verbs  # noqa: F401 - most of a second, of which nobody need see a traceback
        from comas.cli import main as command_line
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    command_line.main()
