"""The same operations on a `HoldfastSessionService` and on the services of ADK itself."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event, EventActions
from google.adk.platform import time as platform_time
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.frameworks.adk import HoldfastSessionService
from tests.conftest import Engine

pytestmark = pytest.mark.processes


@pytest.fixture
async def service(engine: Engine) -> AsyncGenerator[HoldfastSessionService, None]:
    async with HoldfastSessionService(engine.url) as service:
        yield service


USERS = st.sampled_from(["ada", "bob/eve"])
IDS = st.sampled_from(["1", "漢 /字"])
KEYS = st.sampled_from(["a", "b", "user:a", "user:b", "app:a", "app:user:a", "temp:a", ""])
VALUES = st.sampled_from([None, 1, "x", [1, {"a": None}], {"deep": {"er": [True]}}])
DELTAS = st.dictionaries(KEYS, VALUES, max_size=4)
AGAIN = "the last event"
STEPS = st.one_of(
    st.tuples(st.just("create"), USERS, IDS, DELTAS),
    st.tuples(st.just("append"), st.integers(0, 5), DELTAS, st.sampled_from([None, False, True])),
    st.tuples(st.just("append"), st.integers(0, 5), DELTAS, st.none()),
    st.tuples(st.just("append"), st.integers(0, 5), st.just(AGAIN), st.none()),
    st.tuples(st.just("get"), USERS, IDS, st.none() | st.integers(0, 3), st.none() | st.integers(995, 1030)),
    st.tuples(st.just("list"), st.none() | USERS),
    st.tuples(st.just("delete"), USERS, IDS),
    st.tuples(st.just("user state"), USERS),
)


class Followed:
    """A service, the sessions that it returned so far, and what a caller sees of each step."""

    def __init__(self, service: BaseSessionService, app: str) -> None:
        self.service = service
        self.app = app
        self.sessions: list[Session] = []

    async def do(self, number: int, step: Sequence[Any]) -> Any:
        try:
            return await self._do(number, *step)
        except (AlreadyExistsError, ValueError) as error:
            return type(error).__name__

    async def _do(self, number: int, what: str, *given: Any) -> Any:
        time = 1000.0 + number
        platform_time.set_time_provider(lambda: time)
        match what, *given:
            case "create", user, id_, state:
                session = await self.service.create_session(
                    app_name=self.app, user_id=user, session_id=id_, state=dict(state)
                )
                return self._kept(session)
            case "get", user, id_, recent, after:
                config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
                found = await self.service.get_session(
                    app_name=self.app, user_id=user, session_id=id_, config=config
                )
                return found and self._kept(found, is_whole=recent is None and after is None)
            case "list", user:
                listed = await self.service.list_sessions(app_name=self.app, user_id=user)
                return [session.model_dump() for session in listed.sessions]
            case "delete", user, id_:
                return await self.service.delete_session(app_name=self.app, user_id=user, session_id=id_)
            case "user state", user:
                return await self.service.get_user_state(app_name=self.app, user_id=user)
            case _:
                return await self._append(number, time, *given) if self.sessions else None

    async def _append(self, number: int, time: float, place: int, delta: Any, partial: bool | None) -> Any:
        session = self.sessions[place % len(self.sessions)]
        if delta is AGAIN:
            if not session.events:
                return None
            new = session.events[-1].model_copy(deep=True)
        else:
            new = Event(
                id=f"e{number}",
                author="user",
                invocation_id="i",
                timestamp=time,
                actions=EventActions(state_delta=dict(delta)),
                partial=partial,
            )
        stored = await self.service.append_event(session, new)
        return [stored.model_dump(), None if partial else session.model_dump()]

    def _kept(self, session: Session, *, is_whole: bool = True) -> Any:
        if is_whole:
            self.sessions.append(session)
        return session.model_dump()


numbers = itertools.count()


@given(steps=st.lists(STEPS, min_size=10, max_size=30))
@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
async def test_it_does_what_the_services_of_adk_do(
    service: HoldfastSessionService, tmp_path: Path, steps: list[Sequence[Any]]
):
    app = f"app {next(numbers)}"
    ours = Followed(service, app)
    in_memory = Followed(InMemorySessionService(), app)
    in_sqlite = Followed(SqliteSessionService(str(tmp_path / f"{app}.db")), app)
    for number, step in enumerate([("create", "ada", "1", {}), *steps]):
        result = await ours.do(number, step)
        if AGAIN not in step:  # the service for SQLite fails with an IntegrityError
            assert result == await in_sqlite.do(number, step)
        if result != "StaleSessionError":  # the service in memory accepts a stale session
            assert result == await in_memory.do(number, step)
