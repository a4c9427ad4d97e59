"""Stores and media stores of other packages."""

from pathlib import Path
from textwrap import dedent

import pytest

from holdfast import open_store
from holdfast.errors import UnknownMedia, UnknownStore
from holdfast.media import open_media


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that registers the scheme `other`."""
    (tmp_path / "other_stores.py").write_text(
        dedent("""
            from holdfast.media.disk import DiskMedia
            from holdfast.store.sqlite.store import SqliteStore

            def make_store(url, *, upgrade, settings):
                return SqliteStore(url, ":memory:", upgrade=upgrade, settings=settings)

            def make_media(url, *, store):
                return DiskMedia(store, url.removeprefix("other://"))
        """)
    )
    about = tmp_path / "other_stores-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-stores\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[holdfast.stores]\nother = other_stores:make_store\n\n[holdfast.media]\nother = other_stores:make_media\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.usefixtures("other_package")
async def test_schemes_that_another_package_registers(tmp_path: Path):
    async with open_store("other://here") as store:
        assert (await store.create_session(agent="agent", owner="you")).status == "idle"
        media = open_media(f"other://{tmp_path}/media", store=store)
        assert media.location.endswith("/media")


async def test_schemes_that_nobody_registers():
    with pytest.raises(UnknownStore):
        open_store("other://here")
    async with open_store("sqlite://:memory:") as store:
        with pytest.raises(UnknownMedia):
            open_media("other://here", store=store)
