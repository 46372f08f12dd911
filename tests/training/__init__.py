"""What a step says of itself."""
