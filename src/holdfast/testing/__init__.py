"""Tests of your own agents, and of packages that extend Holdfast. Needs the extra `testing`."""

from holdfast.errors import MissingExtra

try:
    import pytest  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise MissingExtra(extra="testing") from error
