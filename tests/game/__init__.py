"""Games, seeds, turns, quoted work: nothing leaks, nothing is forged."""
