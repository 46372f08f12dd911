"""Before training: the figures in closed form, and what they are said to mean."""
