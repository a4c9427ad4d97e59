"""What only MongoDB can do to a store: step down, be cut off, lack a privilege, be no replica set; and its limits."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from holdfast.errors import LeaseLost, StoreError, StoreReadOnly, StoreUnavailable, UnknownStore
from holdfast.media import open_media
from holdfast.retention import clean, import_archive, rehydrate
from holdfast.store import Store, open_store
from holdfast.types import Batch, Draft, Message, NewEvent, Segment, SubmissionChange, Work
from tests.builders import held_session, new_session, ticks, until
from tests.conftest import ONLY_WITH_MONGOD, Engine, new_database
from tests.contract.test_processes import Proxy, child, tokens
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.servers import Mongo, Postgres, mongo

pytestmark = [pytest.mark.mongodb, pytest.mark.parametrize("engine", ["mongodb"], indirect=True)]

own_server = ONLY_WITH_MONGOD[1]


@pytest.fixture
def doomed_server() -> Generator[Mongo, None, None]:
    with mongo() as server:
        yield server


def tick(payload: str) -> Batch:
    return Batch(events=[NewEvent(kind="tick", payload=json.dumps(payload))])


async def written(store: Store, session_id: str, number: int) -> None:
    assert await tokens(store, session_id) == [str(n) for n in range(number)]


@own_server
async def test_what_was_acknowledged_survives_a_killed_server(engine: Engine, doomed_server: Mongo):
    """At most the one write that was under way may be there beyond what was acknowledged."""
    url = doomed_server.url()
    async with open_store(url) as store:
        session_id = await new_session(store)
    async with child("append", url, session_id, "steady", "1000000") as writer:
        for _ in range(10):
            await writer.hear()
        doomed_server.kill()
        writer.process.kill()
        await writer.end()
    doomed_server.start()
    acknowledged = len(writer.said)
    async with open_store(url) as store:
        found = await tokens(store, session_id)
        assert found == [f"steady-{n}" for n in range(len(found))]
        assert acknowledged <= len(found) <= acknowledged + 1
        assert await store.check() == []


async def test_a_primary_that_steps_down_loses_and_doubles_nothing(engine: Engine, store: Store):
    lease, _ = await held_session(store)
    queue = await new_session(store)
    stop = asyncio.Event()

    async def write() -> int:
        count = 0
        while not stop.is_set():
            await store.write(lease, tick(str(count)))
            count += 1
        return count

    async def submit() -> int:
        count = 0
        while not stop.is_set():
            await store.submit(queue, "message", f"{count}")
            count += 1
        return count

    async def step_down() -> None:
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            for _ in range(2):
                await asyncio.sleep(0.3)
                await client.admin.command("replSetStepDown", 1, force=True)
        await asyncio.sleep(0.5)
        stop.set()

    count, submitted, _ = await asyncio.gather(write(), submit(), step_down())
    await written(store, lease.session_id, count)
    page = await store.submissions(queue, limit=1000)
    assert [s.payload for s in page.items] == [str(n) for n in range(submitted)]


@asynccontextmanager
async def through_a_proxy(engine: Engine) -> AsyncGenerator[tuple[Proxy, str], None]:
    parts = urlsplit(engine.url)
    async with Proxy(parts.port or 27017) as proxy:
        url = urlunsplit(parts._replace(netloc=f"127.0.0.1:{proxy.port}", query="directConnection=true"))
        yield proxy, url


async def test_lost_answers_are_found_again(engine: Engine, store: Store):
    """The server did it and the answer got lost: nothing is done twice."""
    async with through_a_proxy(engine) as (proxy, url), open_store(url) as remote:
        session_id = await new_session(remote)
        proxy.cut_after = b"commitTransaction"
        holder = await remote.join("alive", ttl=60)
        proxy.cut_after = b"commitTransaction"
        lease = await remote.acquire(session_id, holder)
        assert lease.epoch == 1
        proxy.cut_after = b"commitTransaction"
        submission = await remote.submit(session_id, "message")
        proxy.cut_after = b"commitTransaction"
        await remote.write(lease, tick("exactly-once"))
        proxy.cut_after = b"exactly-twice"
        await remote.write(lease, tick("exactly-twice"))
        ticked = [e.payload for e in await store.events(session_id) if e.kind == "tick"]
        assert ticked == ['"exactly-once"', '"exactly-twice"']
        assert [s.id for s in (await store.submissions(session_id)).items] == [submission.id]
        proxy.cut_after = b"commitTransaction"
        await remote.release(lease)
        proxy.cut_after = b"commitTransaction"
        (work,) = await remote.next_work(holder)
        assert (work.lease.epoch, work.submission and work.submission.attempts) == (2, 1)
        proxy.cut_after = b"commitTransaction"
        done = [SubmissionChange(id=submission.id, state="done")]
        await remote.write(work.lease, Batch(submissions=done, status="idle", release=True))
        session = await store.session(session_id)
        assert (session.holder, session.pending, session.epoch) == (None, 0, 2)
        assert proxy.cut_after is None
        await remote.leave(holder)


async def test_a_claim_whose_outcome_was_unknown_is_found_again(engine: Engine, store: Store):
    """Else its sessions would belong to a holder that lives and does not serve them."""
    async with through_a_proxy(engine) as (proxy, url), open_store(url) as remote:
        session_id = await new_session(remote)
        await remote.submit(session_id, "message")
        holder = await remote.join("alive", ttl=600)
        proxy.cut_after = b"commitTransaction"
        claiming = asyncio.create_task(remote.next_work(holder))
        while proxy.cut_after:  # silent before the commit is sent again
            await asyncio.sleep(0)
        proxy.silent = True
        with pytest.raises(StoreUnavailable, match="the outcome of the commit is unknown"):
            await claiming
        assert (await store.session(session_id)).holder == "alive"
        proxy.silent = False
        found: list[Work] = []

        async def is_claimed() -> bool:
            with suppress(StoreUnavailable):
                found.extend(await remote.next_work(holder))
            return bool(found)

        await until(is_claimed, seconds=120)
        ((lease, submission),) = [(work.lease, work.submission) for work in found]
        assert (lease.session_id, lease.epoch, submission and submission.attempts) == (session_id, 1, 1)
        await remote.leave(holder)


@own_server
async def test_errors_of_an_election_are_no_errors_of_a_call(engine: Engine):
    """The errors that a member returns while another one becomes primary. Each commit takes effect once."""
    of_commits: list[dict[str, Any]] = [
        {"errorCode": 10107},  # NotWritablePrimary
        {"errorCode": 11602},  # InterruptedDueToReplStateChange
        {"errorCode": 262},  # ExceededTimeLimit
        {"closeConnection": True},
        {"writeConcernError": {"code": 64, "errmsg": "no majority yet"}},  # WriteConcernTimeout
    ]
    with mongo(faults=True) as server:
        async with (
            open_store(server.url()) as store,
            AsyncMongoClient[dict[str, Any]](server.url(), appname="test") as client,
        ):

            async def fail(command: str, fault: dict[str, Any], times: int) -> None:
                data = {"failCommands": [command], "appName": "holdfast", **fault}
                await client.admin.command(
                    "configureFailPoint", "failCommand", mode={"times": times}, data=data
                )

            lease, holder = await held_session(store)
            for number, fault in enumerate(of_commits):
                await fail("commitTransaction", fault, 3)  # the driver itself sends it twice
                await store.write(lease, tick(str(number)))
                await written(store, lease.session_id, number + 1)
            for code in (134, 187, 189, 262, 10107):  # 134: ReadConcernMajorityNotAvailableYet
                await fail("find", {"errorCode": code}, 3)
                assert (await store.session(lease.session_id)).holder == holder.name
            await store.leave(holder)
            assert await store.check() == []


class _Commands(CommandListener):
    """Notes the read concerns of the reads of a client."""

    def __init__(self) -> None:
        self.levels: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "find":
            self.levels.append(event.command["readConcern"]["level"])

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


async def test_the_first_read_after_an_election_sees_all_that_was_acknowledged(engine: Engine, store: Store):
    """The snapshots of a new primary lack the last writes until it has made one of its own, which a linearizable read does."""
    session_id = await new_session(store)
    commands = _Commands()
    async with (
        AsyncMongoClient[dict[str, Any]](engine.url, event_listeners=[commands]) as client,
        open_store(client=client) as borrowed,
    ):
        await borrowed.session(session_id)
        commands.levels.clear()
        await borrowed.session(session_id)
        assert set(commands.levels) == {"snapshot"}
        commands.levels.clear()
        await client.admin.command("replSetStepDown", 1, force=True)

        async def is_read() -> bool:
            with suppress(StoreUnavailable):
                return (await borrowed.session(session_id)).id == session_id
            return False

        await until(is_read, seconds=60)
    assert "linearizable" in commands.levels
    assert commands.levels[-1] == "snapshot"


async def test_a_silent_server_is_given_up(engine: Engine):
    """No reset, no answer: calls end with an error of ours, and so does closing."""
    async with through_a_proxy(engine) as (proxy, url):
        store = await open_store(url).open()
        lease, holder = await held_session(store)
        proxy.silent = True
        async with asyncio.timeout(60):
            results = await asyncio.gather(
                store.write(lease, ticks()), store.renew(holder), store.session("s"), return_exceptions=True
            )
            assert [type(result).__name__ for result in results] == ["StoreUnavailable"] * 3
            assert lease.lost
            await store.close()
        proxy.silent = False


async def test_a_lease_in_two_hands_is_noticed(engine: Engine, store: Store):
    """A copy of a lease, as a forked process would have, cannot write beside the original."""
    lease, _ = await held_session(store)
    async with open_store(engine.url) as other:
        copy = replace(lease)
        await store.write(lease, ticks())
        with pytest.raises(LeaseLost):
            await other.write(copy, ticks())
    assert await store.write(lease, ticks()) == 2


@own_server
async def test_a_server_that_is_no_replica_set_is_refused(engine: Engine):
    refused = pytest.raises(StoreError, match=r"not a replica set.*--replSet rs0.*rs\.initiate\(\)")
    with mongo(replica_set=False) as server, refused:
        await open_store(server.url()).open()


@own_server
async def test_a_user_without_the_privilege_is_told(engine: Engine):
    """Who may not make the indexes is told so; nothing is half made for who comes later."""
    with mongo(keyfile=True) as server:
        address = server.url("admin", user="root:secret@")
        async with AsyncMongoClient[dict[str, Any]](server.url("admin"), directConnection=True) as client:
            await client.admin.command("createUser", "root", pwd="secret", roles=["root"])
        async with AsyncMongoClient[dict[str, Any]](address) as client:
            roles = [{"role": "read", "db": "test"}]
            await client["test"].command("createUser", "reader", pwd="secret", roles=roles)
            resource = {"db": "test", "collection": ""}
            actions = ["find", "insert", "update", "remove", "listCollections", "createCollection"]
            privileges = [{"resource": resource, "actions": actions}]
            await client["test"].command("createRole", "noIndexes", privileges=privileges, roles=[])
            await client["test"].command("createUser", "writer", pwd="secret", roles=["noIndexes"])
        for name in ("reader", "writer"):
            with pytest.raises(
                StoreReadOnly, match="requires the role readWrite on the database test"
            ) as refused:
                await open_store(server.url(user=f"{name}:secret@")).open()
            assert "secret" not in str(refused.value)
        with pytest.raises(StoreUnavailable, match="Authentication failed"):
            await open_store(server.url(user="reader:wrong@")).open()
        async with open_store(f"{server.url(user='root:secret@')}&authSource=admin") as store:
            assert await store.check() == []
        # Where the schema is up to date, it takes no right to change it.
        async with open_store(server.url(user="writer:secret@")) as store:
            lease, _ = await held_session(store)
            assert await store.write(lease, ticks()) == 1


async def test_a_message_of_almost_sixteen_megabytes(engine: Engine, store: Store):
    """And beyond: a document has 16 MiB, and a text may have more."""
    lease, _ = await held_session(store)
    texts = [json.dumps("ü" * (15_900_000 // 2), ensure_ascii=False), json.dumps("x" * 18_000_000)]
    await store.write(lease, Batch(segments=[Segment(number=1)]))
    for n, text in enumerate(texts):
        message = Message(segment=1, position=n, body=text)
        await store.write(lease, Batch(messages=[message], events=[NewEvent(kind="message", message=(1, n))]))
    for n, text in enumerate(texts):  # each is more than a page
        (message,) = await store.history(lease.session_id, segment=1, length=2, after=n - 1)
        (event,) = await store.events(lease.session_id, after=n)
        assert (message.body, event.message) == (text, text)
    assert await store.check() == []
    # What is put again replaces what was there, and what is deleted leaves nothing behind.
    for text in ("a" * 2_000_000, "b" * 3_000_000):
        await store.put_drafts(lease, [Draft(run_id="r", part=0, kind="text", text=text)])
    assert [draft.text for draft in await store.drafts(lease.session_id)] == ["b" * 3_000_000]
    while await store.delete_content(lease):
        pass
    async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
        assert await client.get_default_database()["pieces"].count_documents({}) == 0


async def test_a_piece_that_is_nobodys_is_found(engine: Engine):
    async with open_store(engine.url) as store:
        lease, _ = await held_session(store)
        await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=json.dumps("x" * 2_000_000))]))
        assert await store.check() == []
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            events = client.get_default_database()["events"]
            await events.update_many({}, {"$unset": {"pieces": 1}})
        (violation,) = await store.check()
        assert (violation.invariant, violation.session_id) == ("piece has row", lease.session_id)


async def test_keys_with_dots_and_dollars(engine: Engine, store: Store):
    """JSON is text to the store; and no text is ever taken for an operator or a path."""
    wild = json.dumps({"$set": {"a.b": 1}, "": "$$ROOT", "$": "$session_id", "x.y": {"$gt": ""}})
    lease, _ = await held_session(store)
    await store.set_state(lease.session_id, wild, expected_version=0)
    await store.write(lease, Batch(events=[NewEvent(kind="where", payload=wild, run_id="$run_id")]))
    await store.update_session(lease.session_id, title="$title.{$gt}", metadata=wild)
    assert (await store.state(lease.session_id)).body == wild
    assert [e.payload for e in await store.events(lease.session_id, run_id="$run_id")] == [wild]
    found = await store.sessions(search="$TITLE.{", owner="ada")
    assert [s.metadata for s in found.items] == [wild]
    assert (await store.sessions(owner="$owner")).items == []
    submission = await store.submit(lease.session_id, "$inc", wild, idempotency_key="$key.a")
    again = await store.submit(lease.session_id, "$inc", wild, idempotency_key="$key.a")
    assert again == submission


@pytest.mark.new_database
async def test_other_collections_are_left_alone(engine: Engine):
    async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
        database = client.get_default_database()
        await database["orders"].insert_one({"_id": 1, "of": "somebody else"})
        async with open_store(engine.url) as store:
            await new_session(store)
        assert await database["orders"].find({}).to_list() == [{"_id": 1, "of": "somebody else"}]


@pytest.mark.new_database
async def test_migrations_of_something_else_are_not_ours(engine: Engine):
    """Many tools have a collection of that name."""
    async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
        migrations = client.get_default_database()["migrations"]
        await migrations.insert_one({"_id": 7, "name": "add-orders.js"})
        with pytest.raises(StoreError, match="tables of another application, such as migrations"):
            await open_store(engine.url).open()
        assert await migrations.find({}).to_list() == [{"_id": 7, "name": "add-orders.js"}]
        assert await client.get_default_database().list_collection_names() == ["migrations"]


async def test_an_archive_of_another_engine_is_rehydrated(
    engine: Engine, store: Store, postgres_server: Postgres
):
    """Both ways: what one engine exported is what another has, and what was cleaned there comes back from it."""
    async with open_store(await new_database(postgres_server)) as other:
        for first, second in ((store, other), (other, store)):
            media, moved = open_media(store=first), open_media(store=second)
            session_id = await fill(first, media, ["hello", "wörld", "x" * 600_000], blobs=[b"picture"])
            archive = await export(first, session_id)
            await import_archive(second, moved, io.BytesIO(archive), actor="test")
            assert await export(second, session_id) == archive
            await clean(second, moved, session_id, actor="test", force=True)
            await rehydrate(second, moved, session_id, io.BytesIO(archive), actor="test")
            assert await export(second, session_id) == archive
        assert await other.check() == []


async def test_a_hint_arrives_from_another_process_and_without_a_stream_within_a_second(
    engine: Engine, store: Store
):
    async with open_store(engine.url) as other:
        lease, _ = await held_session(store)
        watching = other.watch(lease.session_id)
        for seq in range(1, 4):
            await store.write(lease, ticks())
            async with asyncio.timeout(10):
                assert (await anext(watching)).seq == seq
            async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
                await end_streams(client)
        await watching.aclose()


async def end_streams(client: AsyncMongoClient[dict[str, Any]]) -> None:
    """End every change stream on the server, as a failover would."""

    async def ended() -> bool:
        try:
            operations = await client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
            async for operation in operations:
                cursor = operation.get("cursor", {})
                if cursor.get("tailable"):
                    collection = operation["ns"].partition(".")[2]
                    database = operation["ns"].partition(".")[0]
                    kill = {"killCursors": collection, "cursors": [cursor["cursorId"]]}
                    await client[database].command(kill)
        except OperationFailure:
            return False
        except PyMongoError:
            return False
        return True

    await until(ended)


@pytest.mark.parametrize("url", ["mongodb://", "mongodb://host:port/x", "mongodb://a,b:c/x"])
def test_a_url_that_is_none(engine: Engine, url: str):
    with pytest.raises(UnknownStore):
        open_store(url)
