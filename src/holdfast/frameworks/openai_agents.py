"""Sessions and waiting runs of the OpenAI Agents SDK in a Holdfast store.

Each item of a conversation is a record of kind `item` with a numbered key, and the state of a run that waits for an approval is the
record `run_state`. Removing an item, or clearing a session, deletes the records.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import BadInput
from holdfast.frameworks.bodies import from_body, to_body
from holdfast.frameworks.framework_store import FrameworkStore, check_version
from holdfast.store import Store
from holdfast.types import Json, Record

check_version("openai-agents", extra="openai-agents", at_least=(0, 24), below=(0, 25))

from agents import Agent, RunState, SessionSettings  # noqa: E402 - after the check
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit  # noqa: E402

if TYPE_CHECKING:
    from agents import TResponseInputItem

_ITEM: Final = "item"
_STATE: Final = ("run_state", "waiting")


def open_sessions(store: str | Path | Store, *, owner: str = "local") -> FrameworkStore:
    """Open a store once for many sessions. Pass the result as the store of each `HoldfastSession`, and close it at the end."""
    return FrameworkStore(store, framework="openai-agents", owner=owner)


class HoldfastSession:
    """A `Session` of the OpenAI Agents SDK. Any thread and any event loop can use it.

    `store` is a URL, the path of a SQLite file, an open store, or the result of `open_sessions`; `owner` applies to the first three.
    `session_settings` can limit the items that `get_items` returns.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        store: str | Path | Store | FrameworkStore,
        *,
        owner: str = "local",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(session_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(
                problem=f"session_id must be a string, not {type(session_id).__name__}: pass str(session_id) if it identifies one session"
            )
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())
        self._closes_store = not isinstance(store, FrameworkStore)
        self._store = store if isinstance(store, FrameworkStore) else open_sessions(store, owner=owner)

    def close(self) -> None:
        """Disconnect, unless the store comes from `open_sessions`. The items stay in the store."""
        if self._closes_store:
            self._store.close()

    async def get_items(self, limit: int | None = None) -> "list[TResponseInputItem]":
        """Return the latest `limit` items, oldest first. Without a limit, the settings define it; 0 returns none, a negative one all."""
        return await self._store.call(self._get(resolve_session_limit(limit, self.session_settings)))

    async def add_items(self, items: "list[TResponseInputItem]") -> None:
        """Append items in one write. They are durable when this returns."""
        if items:
            await self._store.call(self._add([to_body(item) for item in items]))

    async def pop_item(self) -> "TResponseInputItem | None":
        """Delete the latest item, and return it; None if there is none. Raises `RetentionRefused` if the session is on hold."""
        return await self._store.call(self._pop())

    async def clear_session(self) -> None:
        """Delete all items and the saved state of a run. Raises `RetentionRefused` if the session is on hold."""
        await self._store.call(self._clear())

    async def _atomic_replace_items(self, items: "list[TResponseInputItem]") -> bool:
        """Replace all items in one write. `OpenAIResponsesCompactionSession` calls it by this name, instead of a clear and an add."""
        await self._store.call(self._replace([to_body(item) for item in items]))
        return True

    async def save_state(self, state: RunState[Any], **options: Any) -> None:
        """Save a run that waits for an approval, so that another process can continue it. It replaces the saved one.

        The options are those of `RunState.to_json`, such as `context_serializer`.
        """
        record = Record(kind=_STATE[0], key=_STATE[1], body=to_body(state.to_json(**options)))
        await self._store.call(self._put(record))

    async def load_state(self, agent: Agent[Any], **options: Any) -> RunState[Any] | None:
        """Return the saved run, for its first agent; None if there is none. The options are those of `RunState.from_json`."""
        saved = await self._store.call(self._read(*_STATE))
        return await RunState.from_json(agent, from_body(saved[0].body), **options) if saved else None

    async def delete_state(self) -> bool:
        """Delete the saved run. Of several processes that do so at once, one gets True: let that one continue the run."""
        return await self._store.call(self._delete_state())

    async def _read(self, kind: str, key: str = "", limit: int | None = None) -> list[Record]:
        """Return the latest records, latest first."""
        session_id = await self._store.find_id(self.session_id)
        if session_id is None:
            return []
        return await self._store.records(session_id, kind, prefix=key, reverse=True, limit=limit)

    async def _get(self, limit: int | None) -> "list[TResponseInputItem]":
        latest = await self._read(_ITEM, limit=None if limit is None or limit < 0 else limit)
        return [from_body(record.body) for record in reversed(latest)]

    async def _add(self, bodies: list[Json]) -> None:
        session_id = await self._store.ensure_id(self.session_id)
        async with self._store.writing(session_id) as writer:
            number = writer.known.get("next")
            if number is None:
                latest = await self._store.records(session_id, _ITEM, reverse=True, limit=1, bodies=False)
                number = int(latest[0].key) + 1 if latest else 0
            await writer.write([_item(number + place, body) for place, body in enumerate(bodies)])
            writer.known["next"] = number + len(bodies)

    async def _replace(self, bodies: list[Json]) -> None:
        session_id = await self._store.ensure_id(self.session_id)
        async with self._store.writing(session_id) as writer:
            await self._store.refuse_on_hold(session_id)
            old = await self._store.records(session_id, _ITEM, bodies=False)
            number = int(old[-1].key) + 1 if old else 0
            items = [_item(number + place, body) for place, body in enumerate(bodies)]
            await writer.write(items, dropped=[(_ITEM, item.key) for item in old])
            writer.known["next"] = number + len(bodies)

    async def _put(self, record: Record) -> None:
        async with self._store.writing(await self._store.ensure_id(self.session_id)) as writer:
            await writer.write([record])

    async def _pop(self) -> "TResponseInputItem | None":
        session_id = await self._store.find_id(self.session_id)
        if session_id is None:
            return None
        async with self._store.writing(session_id) as writer:
            await self._store.refuse_on_hold(session_id)
            latest = await self._store.records(session_id, _ITEM, reverse=True, limit=1)
            if not latest:
                return None
            await writer.write(dropped=[(_ITEM, latest[0].key)])
            writer.known["next"] = int(latest[0].key)
            return from_body(latest[0].body)

    async def _clear(self) -> None:
        session_id = await self._store.find_id(self.session_id)
        if session_id is None:
            return
        async with self._store.writing(session_id) as writer:
            await self._store.refuse_on_hold(session_id)
            items = await self._store.records(session_id, _ITEM, bodies=False)
            await writer.write(dropped=[_STATE, *((_ITEM, item.key) for item in items)])
            writer.known["next"] = 0

    async def _delete_state(self) -> bool:
        session_id = await self._store.find_id(self.session_id)
        if session_id is None:
            return False
        async with self._store.writing(session_id) as writer:
            saved = await self._store.records(session_id, _STATE[0], prefix=_STATE[1], bodies=False)
            if saved:
                await writer.write(dropped=[_STATE])
            return bool(saved)


def _item(number: int, body: Json) -> Record:
    return Record(kind=_ITEM, key=f"{number:012}", body=body)
