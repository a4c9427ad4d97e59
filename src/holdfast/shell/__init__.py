"""Durable shell commands and their output log."""

from holdfast.shell.service import Result, ShellService

__all__ = ["Result", "ShellService"]
