"""Whole runs: the same seed is the same run, alone, in company, resumed, with judges elsewhere."""
