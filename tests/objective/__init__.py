"""Credit and losses against closed forms, properties and finite differences."""
