"""Databases that earlier schemas made, opened by today's code."""
