"""Exit codes of the command, besides 0."""

FAILED = 1
"""A study of which cells failed or are left."""
MISTAKE = 2
"""A user's mistake, or a machine that failed: one line on stderr says which."""
ALARMED = 3
"""A run that a monitor's alarm has ended (`on_alarm`)."""
STOPPED = 130
"""Ctrl-C: 128 + SIGINT, as shells give for it."""
CLOSED = 141
"""Whoever read stdout has read enough (`comas eval ... | head`): 128 + SIGPIPE, as shells give for
it.
"""
