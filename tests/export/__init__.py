"""Exported folders are what was trained."""
