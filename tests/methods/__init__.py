"""Shipped methods: golden transcripts and every branch of their settlements."""
