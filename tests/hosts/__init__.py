"""Hosts: models behind an API, against a server that really listens."""
