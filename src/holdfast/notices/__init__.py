"""Notices: webhooks that report to other systems."""
