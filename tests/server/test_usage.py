"""Usage over HTTP: an owner sees only its own, and bad parameters have clear errors."""

from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.types import Batch
from holdfast.usage import Usage
from tests.server.conftest import TOKENS


@pytest.fixture(autouse=True)
async def _used(store: Store) -> None:
    holder = await store.join("worker", ttl=60)
    for name in ("owner", "other"):
        await store.create_session(id=f"of-{name}", agent="agent", owner=name)
        lease = await store.acquire(f"of-{name}", holder)
        used = Usage(agent="agent", model="m", requests=2, cost_nanos=1_500_000_000, working_us=2_500_000)
        await store.write(lease, Batch(usage=[used]))
    await store.leave(holder)


async def read(http: httpx2.AsyncClient, name: str, **params: Any) -> Any:
    headers = {"authorization": f"Bearer {TOKENS[name]}"}
    return (await http.get("/api/usage", params=params, headers=headers)).json()


async def test_an_owner_sees_only_its_own(http: httpx2.AsyncClient):
    for params in ({}, {"owner": "owner"}):
        (usage,) = (await read(http, "owner", by="owner,session_id", **params))["items"]
        assert (usage["owner"], usage["session_id"], usage["day"]) == ("owner", "of-owner", None)
        assert (usage["requests"], usage["cost_usd"], usage["seconds"]) == (2, 1.5, 2.5)
    assert (await read(http, "owner", session_id="of-other"))["items"] == []


async def test_the_usage_of_another_owner_is_refused(http: httpx2.AsyncClient):
    for owner in ("other", "nobody", ""):
        error = (await read(http, "owner", owner=owner))["error"]
        assert error["code"] == "forbidden"
        assert "the role admin to see the usage of others" in error["message"]
    (usage,) = (await read(http, "admin", by="owner", owner="other"))["items"]
    assert usage["owner"] == "other"


async def test_an_administrator_sees_all(http: httpx2.AsyncClient):
    assert [each["owner"] for each in (await read(http, "admin", by="owner"))["items"]] == ["other", "owner"]
    (total,) = (await read(http, "admin", by=""))["items"]
    assert (total["requests"], total["owner"]) == (4, None)
    (day,) = (await read(http, "admin"))["items"]
    assert (day["requests"], len(day["day"])) == (4, 10)
    page = await read(http, "admin", by="owner", limit=1)
    rest = await read(http, "admin", by="owner", limit=1, cursor=page["next_cursor"])
    assert [each["owner"] for each in page["items"] + rest["items"]] == ["other", "owner"]


@pytest.mark.parametrize(
    "params",
    [
        {"by": "month"},
        {"by": "day,"},
        {"first": "yesterday"},
        {"first": "2026-02-01", "last": "2026-01-01"},
        {"model": "\0"},
        {"limit": 0},
        {"cursor": "WzEsMl0"},
    ],
)
async def test_bad_parameters_are_refused(http: httpx2.AsyncClient, params: dict[str, Any]):
    assert "error" in await read(http, "admin", **params)
