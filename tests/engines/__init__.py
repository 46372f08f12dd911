"""Sampling: no text depends on its company; every engine is the reference forward."""
