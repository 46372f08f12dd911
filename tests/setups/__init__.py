"""Ways of answering, by scripted agents."""
