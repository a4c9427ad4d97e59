"""Subscriptions over HTTP: an owner sees its own, only administrators subscribe for others, and bad input is refused."""

from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.notices.signature import new_secret, parse_secret
from holdfast.server.auth import digest
from holdfast.subscriptions import NOTICE_KINDS
from tests.server.conftest import TOKENS

URL = "https://example.com/hook"
S = "/api/subscriptions"


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS.get(name, name)}"}


async def create(http: httpx2.AsyncClient, principal: str = "owner", **body: Any) -> httpx2.Response:
    given = {"url": URL, "kinds": ["waiting"]} | body
    return await http.post(S, json=given, headers=headers(principal))


async def listed(http: httpx2.AsyncClient, principal: str, **query: Any) -> list[str]:
    response = await http.get(S, headers=headers(principal), params=query)
    return [each["id"] for each in response.json()["items"]]


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("PATCH", "", {"paused": True}),
    ("POST", "/secret", {}),
    ("POST", "/test", None),
    ("GET", "/deliveries", None),
    ("POST", "/deliveries/{delivery}/repeat", None),
    ("DELETE", "", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES, ids=[f"{each[0]} {each[1]}" for each in ROUTES])
async def test_a_subscription_of_another_owner_does_not_exist(
    http: httpx2.AsyncClient, method: str, path: str, body: Any
):
    created = (await create(http)).json()["id"]
    delivery = (await http.post(f"{S}/{created}/test")).json()["id"]
    results: list[int] = []
    for principal in ("other", "owner"):
        response = await http.request(
            method, f"{S}/{created}{path}".format(delivery=delivery), json=body, headers=headers(principal)
        )
        results.append(response.status_code)
        if principal == "other":
            assert response.json()["error"]["code"] == "not_found"
    assert results[0] == 404
    assert results[1] < 300


async def test_an_administrator_sees_all_and_may_name_the_owner(http: httpx2.AsyncClient):
    own = (await create(http)).json()
    for_ada = (await create(http, "admin", owner="ada")).json()
    assert (own["owner"], for_ada["owner"], for_ada["everyone"]) == ("owner", "ada", False)
    assert await listed(http, "admin") == [own["id"], for_ada["id"]]
    assert await listed(http, "admin", owner="ada") == [for_ada["id"]]
    assert await listed(http, "owner", owner="ada") == [own["id"]]
    assert await listed(http, "other") == []


@pytest.mark.parametrize("body", [{"everyone": True}, {"owner": "other"}])
async def test_only_administrators_subscribe_for_others(http: httpx2.AsyncClient, body: Any):
    refused = await create(http, "owner", **body)
    assert refused.status_code == 403
    assert "the role admin to create subscriptions for others" in refused.json()["error"]["message"]
    assert (await create(http, "admin", **body)).status_code == 201
    assert (await create(http, "owner", owner="owner")).status_code == 201


@pytest.mark.parametrize(("method", "path", "body"), ROUTES, ids=[f"{each[0]} {each[1]}" for each in ROUTES])
async def test_a_user_with_the_owner_of_an_administrator_has_no_access_to_everyone(
    http: httpx2.AsyncClient, store: Store, method: str, path: str, body: Any
):
    """Otherwise a token without the role could redirect the notices of all owners to its own URL."""
    await store.add_token(digest("hf_users_of_boss"), owner="boss")
    created = (await create(http, "admin", everyone=True)).json()["id"]
    delivery = (await http.post(f"{S}/{created}/test", headers=headers("admin"))).json()["id"]
    response = await http.request(
        method,
        f"{S}/{created}{path}".format(delivery=delivery),
        json=body,
        headers=headers("hf_users_of_boss"),
    )
    assert response.status_code == 404
    assert await listed(http, "hf_users_of_boss") == []
    assert await listed(http, "admin") == [created]


async def test_a_token_that_only_reads_changes_nothing(http: httpx2.AsyncClient):
    created = (await create(http)).json()["id"]
    assert (await create(http, "reader")).status_code == 403
    for method, path, body in ROUTES:
        address = f"{S}/{created}{path}".format(delivery="any")
        response = await http.request(method, address, json=body, headers=headers("reader"))
        assert response.status_code == (200 if method == "GET" else 403), path


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"url": "http://example.com/hook"}, "does not allow http"),
        ({"url": "ftp://example.com"}, "must begin with https://"),
        ({"url": "example.com"}, "must begin with https://"),
        ({"url": "https://user:password@example.com"}, "must not contain a user name"),
        ({"url": "https://127.0.0.1/hook"}, "the address 127.0.0.1 is not public"),
        ({"url": "https://[::1]/hook"}, "the address ::1 is not public"),
        ({"url": "https://[::ffff:10.0.0.1]/"}, "the address 10.0.0.1 is not public"),
        ({"url": "https://169.254.169.254/latest"}, "is not public"),
        ({"url": "https://0x7f.1/"}, "the host of the webhook URL"),
        ({"url": "https://example.com:0/"}, "port"),
        ({"url": f"https://example.com/{'a' * 2048}"}, "url"),
        ({"url": "https://example.com/a b"}, "url"),
        ({"url": ""}, "url"),
        ({"kinds": []}, "kinds"),
        ({"kinds": ["finished"]}, "kinds"),
        ({"kinds": "waiting"}, "kinds"),
        ({"kinds": ["worker_lost"]}, "requires everyone"),
        ({"kinds": ["waiting"] * (len(NOTICE_KINDS) + 1)}, "kinds"),
        ({"agents": [f"a{n}" for n in range(101)]}, "agents"),
        ({"sessions": [f"s{n}" for n in range(101)]}, "sessions"),
        ({"sessions": ["not an id"]}, "sessions"),
        ({"agents": ["a\0"]}, "agents"),
        ({"content": "yes"}, "content"),
        ({"secret": "hunter2"}, "a webhook secret is `whsec_`"),
        ({"secret": "whsec_c2hvcnQ="}, "24 to 64 random bytes"),
        ({"secret": "whsec_not/base64!"}, "a webhook secret is"),
        ({"secret": f"whsec_{'A' * 88}"}, "24 to 64 random bytes"),
        ({"more": 1}, "more"),
    ],
)
async def test_bad_subscriptions_are_refused(http: httpx2.AsyncClient, body: Any, problem: str):
    response = await create(http, **body)
    error = response.json()["error"]
    assert (response.status_code, error["code"][:3]) == (422, "bad"), response.text
    assert problem in error["message"]
    assert "secret" not in body or body["secret"] not in response.text
    assert await listed(http, "owner") == []


async def test_a_bad_change_changes_nothing(http: httpx2.AsyncClient):
    path = f"{S}/{(await create(http)).json()['id']}"
    before = (await http.get(path)).json()
    bad: list[dict[str, Any]] = [
        {"url": "https://10.0.0.1/"},
        {"kinds": ["worker_lost"]},
        {"kinds": []},
        {"everyone": True},
        {"owner": "other"},
        {"secret": new_secret()},
        {"paused": 1},
    ]
    for body in bad:
        assert (await http.patch(path, json=body)).status_code == 422, body
    assert (await http.get(path)).json() == before


async def test_the_secret_is_only_in_the_responses_of_create_and_rotate(http: httpx2.AsyncClient):
    created = (await create(http)).json()
    path = f"{S}/{created['id']}"
    rotated = (await http.post(f"{path}/secret", json={})).json()
    chosen = new_secret()
    given = (await http.post(f"{path}/secret", json={"secret": chosen})).json()
    assert given["secret"] == chosen
    assert len({len(parse_secret(each["secret"])) for each in (created, rotated)}) == 1
    assert created["secret"] != rotated["secret"]
    secrets = [each["secret"].removeprefix("whsec_") for each in (created, rotated, given)]
    others = [
        await http.get(S),
        await http.get(path),
        await http.patch(path, json={"kinds": ["done"], "agents": ["scribe"]}),
        await http.post(f"{path}/test"),
        await http.get(f"{path}/deliveries"),
        await http.get("/api/audit", headers=headers("admin")),
        await http.delete(path),
    ]
    for response in others:
        assert response.status_code < 300
        assert "whsec_" not in response.text
        assert not any(secret in response.text for secret in secrets)


async def test_deliveries_are_listed_by_state_and_a_paused_subscription_sends_nothing(
    http: httpx2.AsyncClient,
):
    path = f"{S}/{(await create(http)).json()['id']}"
    delivery = (await http.post(f"{path}/test")).json()
    assert (delivery["kind"], delivery["state"], delivery["session_id"]) == ("test", "pending", "")

    async def ids(state: str) -> list[str]:
        response = await http.get(f"{path}/deliveries", params={"state": state})
        return [each["id"] for each in response.json()["items"]]

    assert await ids("pending") == [delivery["id"]]
    assert await ids("delivered") == await ids("undeliverable") == []
    assert (await http.get(f"{path}/deliveries", params={"state": "lost"})).status_code == 422
    again = await http.post(f"{path}/deliveries/{delivery['id']}/repeat")
    assert again.status_code == 202
    assert again.json() | {"due_at": None} == delivery | {"due_at": None}  # it is pending
    assert again.json()["due_at"] > delivery["due_at"]
    assert (await http.post(f"{path}/deliveries/none/repeat")).status_code == 404
    assert (await http.patch(path, json={"paused": True})).json()["paused"]
    for paused in ("/test", f"/deliveries/{delivery['id']}/repeat"):
        refused = await http.post(f"{path}{paused}")
        assert (refused.status_code, "is paused; resume it first" in refused.text) == (409, True)
    assert (await http.delete(path)).status_code == 204
    assert (await http.get(f"{path}/deliveries")).status_code == 404


async def test_an_owner_has_at_most_a_hundred(http: httpx2.AsyncClient):
    for _ in range(100):
        assert (await create(http)).status_code == 201
    refused = await create(http)
    assert refused.status_code == 409
    assert "owner has 100 subscriptions, which is the limit; delete one first" in refused.text
    assert (await create(http, "other")).status_code == 201
