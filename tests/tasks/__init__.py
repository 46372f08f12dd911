"""Tasks: splits, reading, verdicts."""
