"""Generators of files that are part of the repository."""
