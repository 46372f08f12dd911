"""The shipped models are what their cards say."""
