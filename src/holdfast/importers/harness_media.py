"""Restore content that pydantic-ai-harness moved out of messages into its media store: large texts and binary content.

The harness replaces it by an object with its own keys, a marker. User content that looks like a marker was wrapped and is
unwrapped; user keys that were renamed to make room for a marker are restored.
"""

import base64
import hashlib
import re
from typing import Any, Final

from holdfast.errors import BadImport
from holdfast.importers.harness_sources import HarnessSource, is_list, is_object

MARK: Final = "__harness_external"
"""The prefix of all keys of the harness: a text without it needs no restoring."""
_MEDIA: Final = f"{MARK}_media__"
_TEXT: Final = f"{MARK}_text__"
_URI: Final = f"{MARK}_uri__"
_MOVED: Final = f"{MARK}_escaped_keys__"
_FORMAT: Final = f"{MARK}_marker_format__"
_URL_SAFE: Final = f"{MARK}_urlsafe__"
_LITERAL: Final = f"{MARK}_literal__"
_REFERENCE: Final = re.compile(r"media\+sha256://([0-9a-f]{64})")


class MediaRestorer:
    """Restores the messages of one snapshot."""

    def __init__(self, source: HarnessSource, where: str) -> None:
        self._source = source
        self._where = where

    async def restored(self, node: Any) -> Any:
        """Return a JSON value with all moved content restored. Raises `BadImport`."""
        if is_list(node):
            return [await self.restored(each) for each in node]
        if not is_object(node):
            return node
        stamp = node.get(_FORMAT)
        if set(node) == {_LITERAL, _FORMAT} and isinstance(stamp, str) and stamp.startswith("literal-v"):
            if stamp != "literal-v1" or not is_object(node[_LITERAL]):
                raise self._newer()
            node = node[_LITERAL]
        elif node.get(_MEDIA) is True:
            return await self._part(node)
        return {key: await self.restored(each) for key, each in node.items()}

    async def _part(self, mark: dict[str, Any]) -> dict[str, Any]:
        """Return the part that a marker replaces."""
        ours = {_MEDIA, _TEXT, _URI}
        moved: Any = mark.get(_MOVED)
        stamp = mark.get(_FORMAT)
        escaped: dict[str, Any] = {}
        if is_object(moved) and moved and isinstance(stamp, str) and stamp.startswith("escaped-keys-v"):
            if stamp != "escaped-keys-v1":
                raise self._newer()
            escaped = moved
            ours |= {_MOVED, _FORMAT}
        url_safe = mark.get(_URL_SAFE) == "base64-urlsafe-v1"
        if url_safe:
            ours.add(_URL_SAFE)
        uri = mark.get(_URI, mark.get("uri"))
        if _URI not in mark or mark.get("uri") == uri:
            ours.add("uri")
        data = await self._content(uri)
        part = {key: await self.restored(each) for key, each in mark.items() if key not in ours}
        part |= {key: await self.restored(each) for key, each in escaped.items()}
        if mark.get(_TEXT) is True:
            part["content"] = data.decode("utf-8", "surrogatepass")
        else:
            part["data"] = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
        return part

    async def _content(self, uri: object) -> bytes:
        reference = _REFERENCE.fullmatch(str(uri))
        if reference is None:
            raise self._source.bad(f"{self._where} refers to {uri!r:.200}, which is not a media URI")
        data = await self._source.media(reference[1])
        if data is None:
            raise self._source.bad(
                f"{self._where} refers to {uri}, which the source does not contain; if the harness stored media elsewhere, restore it first"
            )
        if hashlib.sha256(data).hexdigest() != reference[1]:
            raise self._source.bad(f"the bytes of {uri} are damaged")
        return data

    def _newer(self) -> BadImport:
        return self._source.bad(f"{self._where} stores large content in an unknown format; upgrade Holdfast")
