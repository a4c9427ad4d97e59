"""Large content of recorded runs: outside of the rows, shared, restored exactly, and gone when nobody refers to it."""
# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportUnknownArgumentType=false

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    BinaryImage,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolReturn,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from holdfast import (
    ExternalMedia,
    Holdfast,
    Store,
    continue_session,
    fork,
    inspect_run,
    load_history,
    open_store,
    resume,
    settle_effect,
)
from holdfast.config import load_settings
from holdfast.errors import MediaUnavailable
from holdfast.leases import hold_lease
from holdfast.media import MediaContext, MediaStore, collect, open_media
from holdfast.media.media_store import CHUNK
from holdfast.record.history import read_history
from holdfast.retention import erase
from holdfast.types import Batch, Effect, Run
from tests.builders import contents, referred, until
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.record.agents import call, recorded

BIG = "a long story\n" * 10_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store, None]:
    async with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened
        assert await opened.check() == []


async def latest(store: Store, session_id: str = "talk") -> Any:
    (found,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return found


async def clean(store: Store, session_id: str) -> None:
    async with hold_lease(store, session_id) as lease:
        while await store.delete_content(lease):
            pass


def tell(n: int = 1) -> str:
    return BIG * n


async def test_large_text_and_binary_leave_the_rows(store: Store, tmp_path: Path):
    picture = BinaryImage(os.urandom(100_000), media_type="image/png")
    agent = recorded(store, [call("tell")], tools=[tell])
    result = await agent.run(["look", picture], conversation_id="talk")
    bodies = await read_history(store, "talk", await latest(store))
    assert max(map(len, bodies)) < 2000
    assert await load_history(store, await latest(store)) == result.all_messages()
    kinds = {blob.media_type for blob in await contents(store)}
    assert kinds == {"image/png", "text/plain; charset=utf-8"}
    assert len(await referred(store, "talk")) == 2
    # Every text in every row is short: also what the ledger had before it moved.
    connection = sqlite3.connect(tmp_path / "store.db")
    assert connection.execute("SELECT max(length(payload)) FROM events").fetchone()[0] < 2000
    connection.close()
    result = await continue_session(agent, store, "talk", "and?")
    assert await load_history(store, await latest(store)) == result.all_messages()


@pytest.mark.thorough("postgres")
async def test_a_tool_result_of_50_mb(engine: Engine):
    def download() -> BinaryContent:
        return BinaryContent(bytes(range(256)) * 200_000, media_type="application/pdf")

    async with open_store(engine.url) as store:
        agent = recorded(store, [call("download")], tools=[download])
        result = await agent.run("go", conversation_id="talk")
        assert await load_history(store, await latest(store)) == result.all_messages()
        assert await store.check() == []


async def test_images_that_are_sent_again_and_again_are_stored_once(tmp_path: Path):
    images = [BinaryImage(os.urandom(CHUNK), media_type="image/png") for _ in range(16)]

    def look(n: int) -> list[Any]:
        return [f"step {n}", images[n % 16]]

    file = tmp_path / "store.db"
    settings = load_settings(max_history_bytes=128 * 1024 * 1024)
    async with open_store(f"sqlite:///{file}", settings=settings) as store:
        agent = recorded(store, *([call("look", f"call-{n}", n=n)] for n in range(50)), tools=[look])
        unlimited = UsageLimits(request_limit=None)
        result = await agent.run(["begin", *images], conversation_id="talk", usage_limits=unlimited)
        assert await load_history(store, await latest(store)) == result.all_messages()
        other = recorded(store)
        await other.run(["shared", images[0]], conversation_id="other")
    unique = 16 * CHUNK
    assert file.stat().st_size <= 1.05 * unique
    async with open_store(f"sqlite:///{file}") as store:
        media = open_media(store=store)
        await clean(store, "talk")
        assert (await collect(media, grace=0)).blobs == 16  # and the profile
        messages = await load_history(store, await latest(store, "other"))
        assert images[0] in messages[0].parts[0].content
        assert await store.check() == []
    assert file.stat().st_size < 2 * CHUNK
    raw = file.read_bytes()
    assert not any(image.data[:64] in raw for image in images[1:])
    assert images[0].data[:64] in raw


async def test_the_same_on_disk(store: Store, tmp_path: Path):
    media = open_media(f"disk://{tmp_path}/media", store=store)
    pictures = [BinaryImage(os.urandom(CHUNK), media_type="image/png") for _ in range(3)]
    agent = recorded(store, media=media)
    result = await agent.run(["a", *pictures], conversation_id="talk")
    await agent.run(["b", pictures[0]], conversation_id="other")
    assert await load_history(store, await latest(store), media=media) == result.all_messages()
    result = await continue_session(agent, store, "talk", "more")
    assert await load_history(store, await latest(store), media=media) == result.all_messages()

    def stored() -> int:
        return sum(f.stat().st_size for f in (tmp_path / "media").rglob("*") if f.is_file())

    assert stored() <= 1.05 * 3 * CHUNK
    await clean(store, "talk")
    assert (await collect(media, grace=0)).blobs == 2
    assert CHUNK < stored() <= 1.05 * CHUNK
    assert await media.get((await media.list()).items[0].uri) == pictures[0].data


async def test_the_settings_say_where_and_from_what_size(tmp_path: Path):
    settings = load_settings(media=f"disk://{tmp_path}/media", media_threshold_bytes=2000)
    async with open_store(f"sqlite:///{tmp_path}/s.db", settings=settings) as store:
        result = await recorded(store).run("x" * 2000, conversation_id="talk")
        assert [blob.location for blob in await contents(store)] == [f"disk://{tmp_path}/media"]
        assert await load_history(store, await latest(store)) == result.all_messages()


async def test_content_that_looks_like_a_reference_is_the_users_own(store: Store):
    picture = BinaryImage(os.urandom(100_000), media_type="image/png")
    agent = recorded(store)
    await agent.run(["first", picture], conversation_id="talk")
    (blob,) = await contents(store)
    sly = f"{blob.uri}#base64url"
    result = await recorded(store, [TextPart("media+sha256:~")]).run(sly, conversation_id="sly")
    assert await load_history(store, await latest(store, "sly")) == result.all_messages()
    assert await referred(store, "sly") == set()


async def test_a_recorded_large_result_is_given_again(store: Store):
    ran: list[str] = []

    async def big() -> str:
        ran.append("big")
        return BIG

    async def structured() -> ToolReturn[Any]:
        ran.append("structured")
        return ToolReturn("ok", content=[BinaryImage(b"\x00" * 90_000, media_type="image/png")])

    async def dies() -> str:
        await asyncio.Event().wait()
        return "never"

    async def others() -> list[Effect]:
        page = await store.effects("talk")
        return [effect for effect in page.items if effect.tool != "dies"]

    calls = [call("big", "c1"), call("structured", "c2"), call("dies", "c3")]
    agent = recorded(store, calls, tools=[big, structured, dies])
    await store.create_session(id="talk", agent="a", owner="local")
    running = asyncio.create_task(agent.run("go", conversation_id="talk"))

    async def is_alone() -> bool:
        ended = [effect.state for effect in await others()]
        return ended == ["completed", "completed"]

    await until(is_alone)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (run,) = (await store.runs(session_id="talk")).items
    results = [effect.result or "" for effect in await others()]
    assert max(map(len, results)) < 2000
    assert BIG[:100] in str((await inspect_run(store, run.id)).completed[0].result).replace("\\n", "\n")
    copy = await fork(store, await latest(store))
    assert await referred(store, copy) == await referred(store, "talk")
    again = recorded(store, calls, tools=[big, structured, dies])  # which is settled by then
    await settle_effect(store, run.id, "c3", actor="test", result=BIG + "3")
    result = await resume(again, store, run.id)
    assert sorted(ran) == ["big", "structured"]
    assert [part.content for part in result.all_messages()[2].parts][:3] == [BIG, "ok", BIG + "3"]
    assert await load_history(store, await latest(store)) == result.all_messages()
    # The fork is independent: it goes on with the same results after the first session is gone.
    await clean(store, "talk")
    await collect(open_media(store=store), grace=0)
    result = await continue_session(recorded(store), store, copy, "next")
    parts = [part for message in result.all_messages() for part in message.parts]
    answered = [getattr(part, "content", None) for part in parts]
    assert BIG in answered


async def test_the_response_is_durable_before_any_tool_runs(store: Store):
    """Also when the response is large, and takes a while to put, and several tools start at once."""
    seen: list[int] = []

    async def left() -> str:
        seen.append((await latest(store)).length)
        return "l"

    async def right() -> str:
        seen.append((await latest(store)).length)
        return "r"

    agent = recorded(
        store, [TextPart(BIG * 20), call("left", "c1"), call("right", "c2")], tools=[left, right]
    )
    await agent.run("go", conversation_id="talk")
    assert seen == [2, 2]


async def test_a_media_store_that_fails_ends_the_run_and_the_next_goes_on(store: Store, tmp_path: Path):
    (tmp_path / "blocked").write_text("not a folder")
    media = open_media(f"disk://{tmp_path}/blocked", store=store)

    async def small() -> str:
        return "small"

    agent = recorded(store, [call("small", "c1"), call("tell", "c2")], tools=[small, tell], media=media)
    with pytest.raises(MediaUnavailable):
        await agent.run("go", conversation_id="talk")
    (run,) = (await store.runs(session_id="talk")).items
    assert (run.status, "media store" in (run.error or "")) == ("failed", True)
    report = await inspect_run(store, run.id)
    assert report.unresolved == []
    assert {effect.call_id for effect in report.completed} == {"c1", "c2"}
    (tmp_path / "blocked").unlink()
    result = await continue_session(agent, store, "talk", "again")
    assert "could not be recorded" in str(result.all_messages())
    assert await load_history(store, await latest(store), media=media) == result.all_messages()


async def test_a_run_without_large_content_does_not_touch_the_media_store(store: Store):
    class Untouched(MediaStore):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    Untouched.__abstractmethods__ = frozenset()
    media = object.__new__(Untouched)
    agent = recorded(store, [call("tell", n=0)], tools=[tell], media=media)
    await agent.run("x" * 60_000, conversation_id="talk")


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [
        ("image/png", ImageUrl),
        ("audio/wav", AudioUrl),
        ("video/mp4", VideoUrl),
        ("application/pdf", DocumentUrl),
        ("text/csv", DocumentUrl),
    ],
)
async def test_external_media_sends_urls_and_records_the_original(
    store: Store, tmp_path: Path, media_type: str, kind: type[Any]
):
    sent: list[list[ModelMessage]] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(messages)
        return ModelResponse(parts=[call("fetch") if len(sent) == 1 else TextPart("done")])

    content = BinaryContent.narrow_type(
        BinaryContent(os.urandom(70_000), media_type=media_type, vendor_metadata={"detail": "high"})
    )
    small = BinaryImage(b"small", media_type="image/png")

    def fetch() -> list[Any]:
        return ["here", content, small]

    media = open_media(f"disk://{tmp_path}/media", store=store)
    media._public_url = "https://cdn.example"
    agent = Agent(
        FunctionModel(model), tools=[fetch], capabilities=[ExternalMedia(media), Holdfast(store, media=media)]
    )
    result = await agent.run(["see", content, small], conversation_id="talk")
    (blob,) = (await media.list()).items
    for messages in sent:
        prompt = messages[0].parts[0]
        assert isinstance(prompt, UserPromptPart)
        assert prompt.content[0] == "see"
        assert prompt.content[1] == kind(
            f"https://cdn.example/{blob.key}", vendor_metadata={"detail": "high"}
        )
        assert prompt.content[1].media_type == media_type
        assert prompt.content[1].identifier == content.identifier
        assert prompt.content[2] == small
    returned: Any = sent[1][2].parts[0].content
    assert isinstance(returned[1], kind)
    recorded_messages = await load_history(store, await latest(store), media=media)
    assert recorded_messages == result.all_messages()
    kept: Any = recorded_messages[0].parts[0].content
    assert kept[1] == content


async def test_external_media_without_a_url_sends_the_bytes(store: Store):
    content = BinaryImage(os.urandom(70_000), media_type="image/png")
    sent: list[Any] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(messages[0].parts[0].content)
        return ModelResponse(parts=[TextPart("ok")])

    agent = Agent(FunctionModel(model), capabilities=[ExternalMedia(open_media(store=store))])
    await agent.run(["see", content])
    assert sent == [["see", content]]


async def test_settling_a_large_result_by_hand(store: Store):
    session = await store.create_session(agent="a", owner="o")
    async with hold_lease(store, session.id) as lease:
        await store.write(
            lease, Batch(runs=[Run(id="r")], effects=[Effect(run_id="r", call_id="c", tool="t")])
        )
    effect = await settle_effect(store, "r", "c", actor="test", result=BIG)
    assert len(effect.result or "") < 1000
    assert len((await inspect_run(store, "r")).completed[0].result or "") > len(BIG)


async def test_content_that_is_deleted_before_it_is_referred_to_is_put_again(store: Store):
    """Another session that had the same content is erased between the upload and the write."""
    media = open_media(store=store)
    other = await fill(store, media, ["hello"], blobs=[(BIG * 2).encode()])
    put = media.put
    erased: list[str] = []

    async def put_and_erase(data: bytes, context: MediaContext) -> str:
        uri = await put(data, context)
        if not erased:
            erased.append(other)
            await erase(store, open_media(store=store), other, actor="test")
        return uri

    media.put = put_and_erase  # pyright: ignore[reportAttributeAccessIssue]
    agent = recorded(store, [TextPart(BIG * 2)], media=media)
    result = await agent.run("go", conversation_id="talk")
    assert erased
    assert result.output == BIG * 2
    assert await load_history(store, await latest(store), media=media) == result.all_messages()
    assert await store.check() == []
