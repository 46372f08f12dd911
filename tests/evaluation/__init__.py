"""Evaluations: everything is asked once and alike; intervals and tests against closed forms."""
