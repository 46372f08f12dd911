"""Tests of trackers."""
