"""Archives of any content, also such whose digest fits: refused, or taken, and then every invariant holds."""

import gzip
import io
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.media import open_media
from holdfast.retention import import_archive, verify_archive
from holdfast.store import open_store
from tests.fuzz.conftest import Opened
from tests.fuzz.values import FUZZ, JSON
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.retention.test_bad_archives import LONGEST, remade


@FUZZ
@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"format":"holdfast-archive","version":1,"session_id":"s"}\n' + b'{"session":' * 50_000)
@example(gzip.compress(b"\n" * 100_000))
@example(gzip.compress(gzip.compress(b"{}")))
@example(b"\x1f\x8b")
def test_any_bytes(content: bytes):
    for archive in (content, gzip.compress(content, mtime=0)):
        try:
            verify_archive(io.BytesIO(archive), longest=LONGEST)
        except HoldfastError:
            continue
        raise AssertionError(content)


@FUZZ
@given(st.data())
def test_any_change_with_a_digest_that_fits(opened: Opened, data: st.DataObject):
    """Somebody who means harm makes the digest anew. What is taken all the same is sound."""
    archive = _archive(opened)

    def change(records: list[dict[str, Any]]) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(records) - 1))
            match data.draw(
                st.sampled_from(["field", "field", "field", "remove", "again", "swap", "record"])
            ):
                case "remove" if len(records) > 1:
                    del records[at]
                case "again":
                    records.insert(at, records[data.draw(st.integers(0, len(records) - 1))])
                case "swap":
                    other = data.draw(st.integers(0, len(records) - 1))
                    records[at], records[other] = records[other], records[at]
                case "record":
                    records[at] = {
                        data.draw(st.sampled_from(["events", "end", "bytes", "x"])): data.draw(JSON)
                    }
                case _:
                    found: Any = next(iter(records[at].values()))
                    if isinstance(found, dict) and found:
                        row = cast("dict[str, Any]", found)
                        name = data.draw(st.sampled_from(sorted(row)))
                        row[name] = data.draw(JSON | st.sampled_from(list(row.values())))

    try:
        changed = remade(archive, change)
    except (UnicodeEncodeError, ValueError, AttributeError, TypeError):
        return  # it is no archive any more, not even a bad one
    try:
        verify_archive(io.BytesIO(changed), longest=LONGEST)
    except HoldfastError:
        return
    opened.run(_import(changed))


_made: list[bytes] = []


def _archive(opened: Opened) -> bytes:
    """Return the archive of a session that has all kinds of content."""
    if not _made:
        media = open_media(store=opened.store)
        session_id = opened.run(fill(opened.store, media, ["hello", "world"], blobs=[b"picture"]))
        _made.append(opened.run(export(opened.store, session_id)))
    return _made[0]


async def _import(archive: bytes) -> None:
    """Add the session to a store that has nothing; if that is refused, it has nothing afterwards."""
    async with open_store("sqlite://:memory:") as store:
        try:
            await import_archive(store, open_media(store=store), io.BytesIO(archive), actor="test")
        except HoldfastError:
            assert (await store.sessions()).items == []
        assert await store.check() == []
