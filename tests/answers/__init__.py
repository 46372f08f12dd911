"""Answers are read and checked as people write them, in linear time."""
