"""What code and docs may look like."""
