"""Tests for packages that extend Holdfast. Needs the extra `testing`."""
