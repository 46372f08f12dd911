"""Scripts of a checkout, which are no part of the package: run them from its root."""
