"""Bases that do not fit are told in a line."""
