"""Watching what goes on: plain lines, on a terminal with a live one below.

Model text is hostile: it is shown as text, never as markup, and without control characters. Leaves
out: anything that a run depends on.
"""

from comas.display.discussions import clean, discussion, print_episode, span
from comas.display.lines import Display, Lines, Quiet, watcher

__all__ = [
    "Display",
    "Lines",
    "Quiet",
    "clean",
    "discussion",
    "print_episode",
    "span",
    "watcher",
]
