"""What several tests need; no test imports another."""
