"""Studies: settings x seeds from a file, claims that are fixed before the runs, a report."""
