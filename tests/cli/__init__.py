"""The command line and the display: one line per mistake, true progress."""
