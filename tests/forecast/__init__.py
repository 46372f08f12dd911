"""Memory and time are known before a run and heeded."""
