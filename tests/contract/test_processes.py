"""Real processes on one database: together, killed, paused; and the server killed under them."""

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Self

import asyncpg
import pytest

from holdfast.errors import LeaseLost, SessionBusy
from holdfast.leases import hold_lease
from holdfast.store import Store, open_store
from holdfast.store.schema import LATEST
from holdfast.types import Batch, Draft, NewEvent, SubmissionChange
from tests.builders import held_session, new_session, ticks, until
from tests.conftest import Engine
from tests.forking import AsyncForked, start_forked
from tests.servers import Postgres, postgres

pytestmark = pytest.mark.processes


class Child:
    """A process of tests/children.py and what it has said."""

    def __init__(self, process: AsyncForked) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []

    async def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        assert line, "the child ended early"
        self.said.append(json.loads(line))
        return self.said[-1]

    async def tell(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        return await self.hear()

    async def end(self) -> int:
        """Hear it out and return how it ended."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            # What a kill cut off in the middle of a line was never said.
            if line.endswith(b"\n"):
                self.said.append(json.loads(line))
        return await self.process.wait()


@asynccontextmanager
async def child(*arguments: str) -> AsyncGenerator[Child, None]:
    process = await start_forked(
        *(sys.executable, "-m", "tests.children", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(*arguments: str) -> list[dict[str, Any]]:
    async with child(*arguments) as running:
        assert await running.end() == 0
        return running.said


async def tokens(store: Store, session_id: str) -> list[str]:
    found: list[str] = []
    seqs: list[int] = []
    while page := await store.events(session_id, after=seqs[-1] if seqs else 0, limit=1000):
        found += [json.loads(event.payload) for event in page]
        seqs += [event.seq for event in page]
    assert seqs == list(range(1, len(seqs) + 1))
    return found


async def test_eight_processes_append_to_one_session(engine: Engine, store: Store):
    session_id = await new_session(store)
    said = await asyncio.gather(
        *(run("take_turns", engine.url, session_id, f"p{n}", "12", "600") for n in range(8)),
    )
    assert sorted(line["seq"] for lines in said for line in lines) == list(range(1, 97))
    assert sorted(await tokens(store, session_id)) == sorted(f"p{n}-{i}" for n in range(8) for i in range(12))
    assert (await store.session(session_id)).epoch == 96


async def test_eight_processes_append_to_many_sessions(engine: Engine, store: Store):
    ids = [await new_session(store) for _ in range(8)]
    said = await asyncio.gather(
        *(run("append", engine.url, session_id, f"p{n}", "60") for n, session_id in enumerate(ids))
    )
    for n, session_id in enumerate(ids):
        assert [line["seq"] for line in said[n]] == list(range(1, 61))
        assert await tokens(store, session_id) == [f"p{n}-{i}" for i in range(60)]


async def test_readers_in_other_processes(engine: Engine, store: Store):
    lease, _ = await held_session(store)
    reading = [asyncio.create_task(run("read", engine.url, lease.session_id, "120")) for _ in range(2)]
    for _ in range(60):
        await store.write(lease, ticks(2))
        await asyncio.sleep(0.002)
    for said in await asyncio.gather(*reading):
        assert [line["seq"] for line in said] == list(range(1, 121))


async def test_what_was_acknowledged_survives_kill_9(engine: Engine, store: Store):
    chance = random.Random(11)
    for _ in range(4):
        session_id = await new_session(store)
        async with child("append", engine.url, session_id, "doomed", "1000000") as writer:
            for _ in range(chance.randint(1, 120)):
                await writer.hear()
            writer.process.send_signal(signal.SIGKILL)
            await writer.end()
        acknowledged = len(writer.said)
        found = await tokens(store, session_id)
        # At most the one write that was under way may be there beyond what was acknowledged.
        assert found == [f"doomed-{i}" for i in range(len(found))]
        assert acknowledged <= len(found) <= acknowledged + 1


async def test_a_holder_that_was_paused_is_refused(engine: Engine, store: Store):
    session_id = await new_session(store)
    async with child("obey", engine.url, session_id, "0.5") as paused:
        assert await paused.hear() == {"epoch": 1}
        assert await paused.tell("before") == {"seq": 1}
        paused.process.send_signal(signal.SIGSTOP)
        holder = await store.join("successor", ttl=60)

        async def free() -> bool:
            return (await store.session(session_id)).holder is None

        await until(free)
        lease = await store.acquire(session_id, holder)
        assert await store.write(lease, Batch(events=[NewEvent(kind="tick", payload='"after"')])) == 2
        paused.process.send_signal(signal.SIGCONT)
        assert await paused.tell("stale") == {"error": "lease_lost"}
        assert await paused.tell("stale again") == {"error": "lease_lost"}
    assert await tokens(store, session_id) == ["before", "after"]
    assert await store.write(lease, ticks()) == 3


async def test_nobody_waits_for_a_bare_run_whose_process_is_gone(engine: Engine, store: Store):
    session_id = await new_session(store)
    if engine.name == "postgres":
        await until(
            lambda: _is_up_for(engine.url, seconds=20), seconds=30
        )  # before, any connection may be late
    async with child("obey", engine.url, session_id, "20") as killed:
        assert await killed.hear() == {"epoch": 1}
        with pytest.raises(SessionBusy):
            async with hold_lease(store, session_id):
                pass
        killed.process.kill()
        await killed.process.wait()

        async def taken() -> bool:
            with suppress(SessionBusy):  # a server has to notice as well
                async with hold_lease(store, session_id) as lease:
                    return await store.write(lease, ticks()) == 1
            return False

        await until(taken, seconds=10)  # less than the deadline


async def _is_up_for(url: str, *, seconds: float) -> bool:
    connection = await asyncpg.connect(url)
    try:
        since = await connection.fetchval("SELECT extract(epoch FROM now() - pg_postmaster_start_time())")
        return since > seconds
    finally:
        await connection.close()


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_process_paused_inside_of_a_transaction_blocks_nobody_for_long(engine: Engine, store: Store):
    """It may have any lock when it stops; the server takes it away. SQLite cannot: see docs/how-to/stores.md."""
    chance = random.Random(17)
    ids = [await new_session(store) for _ in range(6)]
    holder = await store.join("successor", ttl=60)
    async with AsyncExitStack() as running:
        children = [
            await running.enter_async_context(child("take_turns", engine.url, session_id, "p", "100000", "1"))
            for session_id in ids
        ]
        for paused in children:
            for _ in range(chance.randint(5, 25)):
                await paused.hear()
            await asyncio.sleep(chance.uniform(0, 0.004))
            paused.process.send_signal(signal.SIGSTOP)

        async def take_over(session_id: str) -> None:
            while True:
                try:
                    lease = await store.acquire(session_id, holder)
                except SessionBusy:
                    await asyncio.sleep(0.05)
                else:
                    await store.write(lease, ticks())
                    return

        async with asyncio.timeout(10):
            await asyncio.gather(*map(take_over, ids))


@pytest.mark.new_database
async def test_several_processes_migrate_at_once(engine: Engine):
    said = await asyncio.gather(*(run("migrate", engine.url) for _ in range(8)))
    assert said == [[{"version": LATEST}]] * 8


@pytest.fixture
def doomed_server() -> Generator[Postgres, None, None]:
    with postgres() as server:
        yield server


@pytest.mark.thorough
async def test_what_was_acknowledged_survives_a_killed_server(doomed_server: Postgres):
    """And the writer goes on by itself once the server is back, with nothing missing and nothing twice."""
    url = doomed_server.url()
    async with open_store(url) as store:
        session_id = await new_session(store)
    async with child("append", url, session_id, "steady", "900") as writer:
        for pause in (100, 150, 200):
            for _ in range(pause):
                await writer.hear()
            doomed_server.kill()
            doomed_server.start()
        assert await writer.end() == 0
    assert [line["seq"] for line in writer.said] == list(range(1, 901))
    async with open_store(url) as store:
        assert await tokens(store, session_id) == [f"steady-{i}" for i in range(900)]
        assert await store.check() == []


async def cut_connections(url: str) -> None:
    server = await asyncpg.connect(url)
    try:
        await server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'holdfast' AND datname = current_database()"
        )
    finally:
        await server.close()


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_cut_connections_lose_and_double_nothing(engine: Engine):
    chance = random.Random(3)
    async with open_store(engine.url) as store:
        leases = [(await held_session(store))[0] for _ in range(8)]
        queue = await new_session(store)
        stop = asyncio.Event()

        async def write(number: int) -> int:
            count = 0
            while not stop.is_set():
                await store.write(leases[number], Batch(events=[NewEvent(kind="tick", payload=f'"{count}"')]))
                count += 1
            return count

        async def submit() -> int:
            count = 0
            while not stop.is_set() and count < 500:
                await store.submit(queue, "message", f"{count}")
                count += 1
            return count

        async def cut() -> None:
            for _ in range(25):
                await asyncio.sleep(chance.uniform(0.01, 0.08))
                await cut_connections(engine.url)
            stop.set()

        cutting = asyncio.create_task(cut())
        *written, submitted = await asyncio.gather(*(write(n) for n in range(8)), submit())
        await cutting
        for lease, count in zip(leases, written, strict=True):
            assert await tokens(store, lease.session_id) == [str(i) for i in range(count)]
        page = await store.submissions(queue, limit=1000)
        assert [s.payload for s in page.items] == [str(i) for i in range(submitted)]
        assert await store.check() == []


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_watchers_survive_cut_connections(engine: Engine, store: Store):
    async with open_store(engine.url) as other:
        lease, _ = await held_session(store)
        watching = other.watch(lease.session_id)
        for seq in range(1, 6):
            await store.write(lease, ticks())
            async with asyncio.timeout(10):
                assert (await anext(watching)).seq == seq
            await cut_connections(engine.url)
        await watching.aclose()


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_claim_whose_answer_was_lost_is_not_leaked(engine: Engine):
    """Whatever a claim took while connections were cut, the holder knows of it: nothing is held in secret."""
    chance = random.Random(5)
    async with open_store(engine.url) as store:
        holder = await store.join("worker", ttl=60)
        ids = [await new_session(store) for _ in range(60)]
        for session_id in ids:
            await store.submit(session_id, "message")
        claimed: list[str] = []
        stop = asyncio.Event()

        async def claim() -> None:
            while found := await store.next_work(holder):
                claimed.extend(work.lease.session_id for work in found)
                await asyncio.sleep(0.005)
            stop.set()

        async def cut() -> None:
            while not stop.is_set():
                await asyncio.sleep(chance.uniform(0.02, 0.1))
                await cut_connections(engine.url)

        await asyncio.gather(claim(), cut())
        assert sorted(claimed) == sorted(ids)
        (known,) = await store.holders()
        assert known.sessions == 60


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_lease_in_two_hands_is_noticed(engine: Engine, store: Store):
    """A copy of a lease, as a forked process would have, cannot write beside the original.

    On PostgreSQL only, where writes are counted to recognize a lost answer.
    """
    lease, _ = await held_session(store)
    async with open_store(engine.url) as other:
        copy = replace(lease)
        await store.write(lease, ticks())
        with pytest.raises(LeaseLost):
            await other.write(copy, ticks())
    assert await store.write(lease, ticks()) == 2


class Proxy:
    """Between a store and its server. It can lose the answer of a commit, or fall silent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._links: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self.cut_after: bytes | None = None  # cut the client off once it has sent this
        self.then_after: tuple[bytes, bytes] | None = (
            None  # and again once it has sent the one without the other
        )
        self.silent = False
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for link in self._links:
            for end in link:
                end.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._links.append((writer, far_writer))
        await asyncio.gather(self._pump(reader, far_writer, writer), self._pump(far_reader, writer, None))

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                while self.silent:
                    await asyncio.sleep(0.01)
                if client is not None and self._cuts(data):
                    client.transport.abort()  # the server gets it, the client never learns what came of it
                sink.write(data)
                await sink.drain()
        sink.close()

    def _cuts(self, data: bytes) -> bool:
        if self.cut_after is not None:
            if self.cut_after not in data:
                return False
            self.cut_after = None
            return True
        if self.then_after is None or self.then_after[0] not in data or self.then_after[1] in data:
            return False
        self.then_after = None
        return True


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_lost_answers_are_found_again(engine: Engine, store: Store, postgres_server: Postgres):
    """The server did it and the answer got lost: every call that can be told does not do it twice."""
    async with Proxy(postgres_server.port) as proxy:
        url = engine.url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        async with open_store(url) as remote:
            session_id = await new_session(remote)
            dead = await store.join("dead", ttl=0.3)
            await store.acquire(session_id, dead)

            async def expired() -> bool:
                return (await store.session(session_id)).holder is None

            await until(expired)
            proxy.cut_after = b"COMMIT"
            holder = await remote.join("alive", ttl=60)
            proxy.cut_after = b"COMMIT"
            lease = await remote.acquire(session_id, holder)
            assert (lease.epoch, lease.taken_from) == (2, dead.id)
            proxy.cut_after = b"COMMIT"
            submission = await remote.submit(session_id, "message")
            proxy.cut_after = b"exactly-once"
            await remote.write(lease, Batch(events=[NewEvent(kind="tick", payload='"exactly-once"')]))
            assert [e.payload for e in await store.events(session_id) if e.kind == "tick"] == [
                '"exactly-once"'
            ]
            assert [s.id for s in (await store.submissions(session_id)).items] == [submission.id]
            proxy.cut_after = b"COMMIT"
            await remote.release(lease)
            proxy.cut_after = b"COMMIT"
            (work,) = await remote.next_work(holder)
            assert (work.lease.epoch, work.submission and work.submission.attempts) == (3, 1)
            proxy.cut_after = b"COMMIT"
            done = [SubmissionChange(id=submission.id, state="done")]
            await remote.write(work.lease, Batch(submissions=done, status="idle", release=True))
            assert work.lease.released
            session = await store.session(session_id)
            assert (session.holder, session.pending, session.epoch) == (None, 0, 3)
            assert proxy.cut_after is None
            await remote.leave(holder)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_group_is_written_once_though_asking_for_its_fate_is_cut_off_too(
    engine: Engine, store: Store, postgres_server: Postgres
):
    """The answer to a group is lost; then, when the first of it is known to be in, the connection breaks again."""
    async with Proxy(postgres_server.port) as proxy:
        url = engine.url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        async with open_store(url) as remote:
            holder = await remote.join("writer", ttl=60)
            ids = [await new_session(remote) for _ in range(3)]
            leases = [await remote.acquire(session_id, holder) for session_id in ids]
            proxy.then_after = ids[1].encode(), ids[0].encode()
            proxy.cut_after = b"exactly-once"
            once = Batch(events=[NewEvent(kind="tick", payload='"exactly-once"')])
            assert await asyncio.gather(*(remote.write(lease, once) for lease in leases)) == [1, 1, 1]
            assert (proxy.cut_after, proxy.then_after) == (None, None)
            assert [await remote.write(lease, ticks()) for lease in leases] == [2, 2, 2]
    for session_id in ids:
        assert [e.payload for e in await store.events(session_id)] == ['"exactly-once"', "{}"]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_silent_server_is_given_up(engine: Engine, postgres_server: Postgres):
    """No reset, no answer: calls end with an error of ours, and so does closing."""
    async with Proxy(postgres_server.port) as proxy:
        store = await open_store(engine.url.replace(f":{postgres_server.port}/", f":{proxy.port}/")).open()
        lease, holder = await held_session(store)
        proxy.silent = True
        async with asyncio.timeout(30):
            results = await asyncio.gather(
                store.write(lease, ticks()), store.renew(holder), store.session("s"), return_exceptions=True
            )
            assert [type(result).__name__ for result in results] == ["StoreUnavailable"] * 3
            assert lease.lost
            await store.close()
        proxy.silent = False


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_draft_that_was_being_put_is_dropped_with_its_message(engine: Engine, store: Store):
    lease, _ = await held_session(store)
    for _ in range(20):
        await asyncio.gather(
            store.put_drafts(lease, [Draft(run_id="r", part=0, kind="text", text="half")]),
            store.write(lease, Batch(events=[NewEvent(kind="message")], drafts_done=["r"])),
        )
        await store.write(lease, Batch(drafts_done=["r"]))
        assert await store.drafts(lease.session_id) == []


FORKING = """
import asyncio, os, sys
from holdfast.errors import StoreForked
from holdfast.store import open_store
from tests.builders import held_session, new_session, ticks

store = open_store(sys.argv[1])


async def begin():
    await store.open()
    lease, _ = await held_session(store)
    await store.write(lease, ticks())
    await store.events(lease.session_id)
    return lease


async def inherit(lease):
    uses = [
        lambda: store.write(lease, ticks()),
        lambda: store.events(lease.session_id),
        lambda: new_session(store),
        lambda: store.join("child"),
        lambda: store.reclaim(),
        lambda: anext(store.watch(lease.session_id, after=1)),
        lambda: anext(store.export_rows(lease.session_id)),
    ]
    for use in uses:
        try:
            await asyncio.wait_for(use(), 5)
        except StoreForked as error:
            assert "Open a separate store" in str(error)
        else:
            raise AssertionError("a store that was opened by another process was used")
    await asyncio.wait_for(store.close(), 5)
    async with store.clone_for_thread() as own:
        assert len(await own.events(lease.session_id)) == 1


async def go_on(lease):
    assert await store.write(lease, ticks()) == 2
    assert len(await store.events(lease.session_id)) == 2
    assert await store.reclaim() == []
    assert await store.check() == []
    await store.close()


runner = asyncio.Runner()
lease = runner.run(begin())
for use in ("nothing", "all"):
    child = os.fork()
    if not child:
        if use == "all":
            asyncio.run(inherit(lease))
        os._exit(0)  # the end of the interpreter would close the loop that it shares with its parent
    assert os.waitpid(child, 0)[1] == 0
runner.run(go_on(lease))
runner.close()
"""


async def test_a_forked_process_cannot_use_the_store_that_it_inherited(engine: Engine):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FORKING, engine.url)
    try:
        assert await asyncio.wait_for(process.wait(), 300 if engine.name == "mongodb" else 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
