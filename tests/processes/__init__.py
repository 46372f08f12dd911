"""Kills, signals, full disks: nothing learnt is lost."""
