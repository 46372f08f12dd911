"""Memory and disk are known before a run by a formula, and heeded."""
