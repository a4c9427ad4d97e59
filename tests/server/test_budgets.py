"""Budgets over HTTP and with handles: administrators set them, an owner sees its own, and waiting sessions continue."""

from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.client import connect
from holdfast.errors import BadInput, NotFound
from holdfast.types import Batch
from holdfast.usage import Usage
from tests.server.conftest import TOKENS


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


async def put(http: httpx2.AsyncClient, principal: str, **body: Any) -> httpx2.Response:
    return await http.put("/api/budgets", json=body, headers=headers(principal))


async def test_only_administrators_set_budgets_and_owners_see_theirs(http: httpx2.AsyncClient, store: Store):
    await store.create_session(id="s", agent="agent", owner="owner")
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire("s", holder)
    await store.write(
        lease, Batch(usage=[Usage(agent="agent", model="m", requests=2, cost_nanos=1_500_000_000)])
    )
    refused = await put(http, "owner", per="owner", name="owner", cost=5)
    assert refused.status_code == 403
    for name in ("owner", "other"):
        result = (await put(http, "admin", per="owner", name=name, daily=True, cost="5.25")).json()
        assert result["limits"] == {"requests": None, "tokens": None, "cost": 5.25, "seconds": None}
        assert result["woken"] == 0
    listed = (await http.get("/api/budgets", headers=headers("owner"))).json()["items"]
    assert [(each["name"], each["used"]["cost"], each["used"]["requests"]) for each in listed] == [
        ("owner", 1.5, 2)
    ]
    listed = (await http.get("/api/budgets", headers=headers("owner"), params={"name": "other"})).json()[
        "items"
    ]
    assert [each["name"] for each in listed] == ["owner"]
    assert len((await http.get("/api/budgets", headers=headers("admin"))).json()["items"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        {"per": "owner", "name": "a", "cost": -1},
        {"per": "planet", "name": "a", "cost": 1},
        {"per": "owner", "cost": 1},
        {"per": "owner", "name": "", "cost": 1},
        {"per": "owner", "name": "a\0", "cost": 1},
        {"per": "owner", "name": "a", "cost": 1, "extra": 1},
        {"per": "owner", "name": "a", "tokens": 10**30},
        {"per": "owner", "name": "a", "daily": "yes"},
        {"name": "a"},
    ],
)
async def test_bad_budgets_are_refused(http: httpx2.AsyncClient, body: dict[str, Any]):
    response = await put(http, "admin", **body)
    assert (response.status_code, response.json()["error"]["code"][:3]) == (422, "bad"), response.text


@pytest.mark.parametrize(
    "metadata", [{"budgets": [{"per": "owner", "cost": 1}]}, {"budgets": [{"per": "turn"}]}]
)
async def test_bad_budgets_of_a_session_are_refused(http: httpx2.AsyncClient, metadata: Any):
    body = {"agent": "agent", "metadata": metadata}
    response = await http.post("/api/sessions", json=body, headers=headers("owner"))
    assert response.status_code == 422
    assert "metadata.budgets" in response.text


async def test_handles_set_and_remove_budgets(store: Store):
    async with connect(store) as client:
        changed = await client.set_budget("owner", "ada", daily=True, cost=2.5, tokens=7)
        assert (changed.limits.cost, changed.limits.tokens) == (2.5, 7)
        assert [each.name async for each in client.budgets(per="owner")] == ["ada"]
        await client.remove_budget("owner", "ada", daily=True)
        assert [each async for each in client.budgets()] == []
        with pytest.raises(NotFound, match="owner ada per day"):
            await client.remove_budget("owner", "ada", daily=True)
        with pytest.raises(BadInput, match="cannot be daily"):
            await client.set_budget("turn", "s", daily=True, requests=1)
        with pytest.raises(BadInput, match="needs a limit"):
            await client.set_budget("owner", "ada")
