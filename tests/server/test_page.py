"""The page over HTTP: the token becomes a cookie, no later address carries it, and nothing but the page's files is served."""

import http.client
import re
from collections.abc import AsyncGenerator
from email.message import Message
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import SecretStr

import holdfast.server
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.server.page import FILES
from holdfast.store import open_store
from tests.server.fronts import front

WEB = Path(holdfast.server.__file__).parent / "web"
TOKEN = "hf_the-right-one"
OTHER = "hf_of-mallory"
STORE = "sqlite://:memory:"


@pytest.fixture
async def browser() -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with open_store(STORE) as store:
        await store.add_token(digest(OTHER), owner="mallory")
        app = create_app(load_settings(store=STORE, token=SecretStr(TOKEN)), store, ["agent"])
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            yield client


async def test_a_good_token_becomes_a_cookie_and_leaves_the_address(browser: httpx2.AsyncClient):
    answer = await browser.get("/", params={"token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    assert answer.headers["cache-control"] == "no-store"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"holdfast_token={TOKEN};")
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert attribute.lower() in cookie.lower()
    page = await browser.get("/")
    assert page.status_code == 200
    assert TOKEN not in page.text
    assert (await browser.get("/api/me")).json()["role"] == "admin"


@pytest.mark.parametrize("token", ["bWFueQ/many+more==", 'with "quotes", and more'])
async def test_a_token_that_a_cookie_has_to_quote(browser: httpx2.AsyncClient, token: str):
    async with open_store(STORE) as store:
        app = create_app(load_settings(store=STORE, token=SecretStr(token)), store, ["agent"])
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://here"
        ) as client:
            answer = await client.get("/", params={"token": token})
            cookie = answer.headers["set-cookie"].partition("; ")[0]
            assert (await client.get("/api/me", headers={"cookie": cookie})).json()["role"] == "admin"


async def test_a_cookie_over_https_stays_there(browser: httpx2.AsyncClient):
    answer = await browser.get("https://here/", params={"token": TOKEN})
    assert "; secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("token", ["hf_wrong", "a.b.c", "\u00fc\U0001f980", "x" * 9_000])
async def test_a_wrong_token_is_worth_nothing(browser: httpx2.AsyncClient, token: str):
    answer = await browser.get("/", params={"token": token})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/#/sign-in/refused"
    assert "set-cookie" not in answer.headers
    assert (await browser.get("/api/me")).status_code == 401


async def test_signing_in_and_out(browser: httpx2.AsyncClient):
    refused = await browser.post("/sign-in", json={"token": "hf_wrong"})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    assert (await browser.post("/sign-in", json={"token": TOKEN})).status_code == 204
    assert (await browser.get("/api/me")).status_code == 200
    assert (await browser.post("/sign-out")).status_code == 204
    assert (await browser.get("/api/me")).status_code == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_link_on_another_site_does_not_sign_in(browser: httpx2.AsyncClient, site: str):
    answer = await browser.get("/", params={"token": TOKEN}, headers={"sec-fetch-site": site})
    assert (answer.status_code, answer.headers["location"]) == (303, "/#/sign-in/foreign")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("site", "replaced"),
    [({}, False), ({"sec-fetch-site": "none"}, True), ({"sec-fetch-site": "same-origin"}, True)],
)
async def test_a_valid_cookie_is_replaced_only_if_the_browser_says_that_no_other_site_asks(
    browser: httpx2.AsyncClient, site: dict[str, str], replaced: bool
):
    await browser.post("/sign-in", json={"token": TOKEN})
    answer = await browser.get("/", params={"token": OTHER}, headers=site)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert ("set-cookie" in answer.headers) is replaced
    assert (await browser.get("/api/me")).json()["owner"] == ("mallory" if replaced else "local")


async def test_a_cookie_that_is_worth_nothing_is_replaced(browser: httpx2.AsyncClient):
    browser.cookies.set("holdfast_token", "hf_of-yesterday", domain="here")
    answer = await browser.get("/", params={"token": TOKEN})
    assert answer.headers["set-cookie"].startswith(f"holdfast_token={TOKEN};")


@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "http://elsewhere"},
        {"origin": "null"},
        {"origin": "http://here:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_another_site_cannot_sign_in_or_out(browser: httpx2.AsyncClient, foreign: dict[str, str]):
    own = {"origin": "http://here", "sec-fetch-site": "same-origin"}
    assert (await browser.post("/sign-in", json={"token": TOKEN}, headers=own)).status_code == 204
    for path, body in (("/sign-in", {"token": OTHER}), ("/sign-out", None)):
        refused = await browser.post(path, json=body, headers=foreign)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert "set-cookie" not in refused.headers
    assert (await browser.get("/api/me")).json()["owner"] == "local"
    assert (await browser.post("/sign-out", headers=own)).status_code == 204


@pytest.mark.parametrize(
    "query",
    [
        "token=",
        "token=%00",
        "token=%ff%fe",
        "token=%ed%a0%80",
        "token=a%0d%0aset-cookie:%20x=y",
        "token=hf_a;%20Path=/x",
        "token[]=a&token=b&token=%3Cscript%3E",
        "token=e30.e30.e30",
        "%3Cscript%3Ealert(1)%3C/script%3E",
        "&&&=&;token",
        "token=" + "%" * 5000,
        "a=b&" * 5000,
    ],
)
async def test_hostile_queries_change_nothing(browser: httpx2.AsyncClient, query: str):
    answer = await browser.get(f"/?{query}")
    assert answer.status_code in {200, 303}
    assert answer.headers.get("location", "/") in {"/", "/#/sign-in/refused"}
    assert "set-cookie" not in answer.headers
    assert "script>alert" not in answer.text


async def test_a_cookie_writes_from_the_own_page_only(browser: httpx2.AsyncClient):
    await browser.post("/sign-in", json={"token": TOKEN})
    body = {"agent": "agent"}
    for origin in ({}, {"origin": "http://elsewhere"}, {"origin": "null"}):
        assert (await browser.post("/api/sessions", json=body, headers=origin)).status_code == 403
    made = await browser.post("/api/sessions", json=body, headers={"origin": "http://here"})
    assert made.status_code == 201


async def test_the_policy_allows_what_the_page_needs_and_nothing_else(browser: httpx2.AsyncClient):
    for path in ("/", "/static/app.js", "/static/none", "/api/me"):
        answer = await browser.get(path)
        policy = dict(
            rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";")
        )
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "'self' data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_files_are_served_whole_and_known_again(browser: httpx2.AsyncClient):
    assert {path.name for path in WEB.iterdir()} == set(FILES)
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for path in WEB.iterdir():
        answer = await browser.get(f"/static/{path.name}")
        assert answer.content == path.read_bytes()
        assert answer.headers["content-type"].startswith(kinds[path.suffix[1:]])
        again = await browser.get(f"/static/{path.name}", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304


def test_every_file_that_is_named_exists():
    named = set(re.findall(r'"/static/([^"]+)"', (WEB / "index.html").read_text()))
    named |= set(re.findall(r'"/static/([^"]+)"', (WEB / "docs.html").read_text()))
    for path in WEB.glob("*.js"):
        if path.name != "preact.js":
            named |= set(re.findall(r'from "\./([^"]+)"', path.read_text()))
            named |= set(re.findall(r'"/static/([^"]+)"', path.read_text()))
    assert named == set(FILES) - {"index.html", "docs.html"}


def test_no_inline_script_or_style_and_no_way_to_make_text_into_html():
    """The policy would refuse the former; the latter must not be there at all."""
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="/static/app.js">']
    assert "<style" not in page
    assert not re.search(r"\son\w+=", page)
    for path in WEB.glob("*.js"):
        if path.name != "preact.js":
            found = re.search(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", path.read_text()
            )
            assert found is None, path.name


@pytest.mark.timeout(60)
async def test_tricks_with_paths_find_nothing(tmp_path: Path):
    """Sent as they are, to a real server: no client tidies them up on the way."""
    async with front(f"sqlite:///{tmp_path}/store.db", "--role", "api") as server:
        tricks = [
            "/static/none.js",
            "/static/",
            "/static",
            "/static/../page.py",
            "/static/..%2fpage.py",
            "/static/%2e%2e/page.py",
            "/static/..%5cpage.py",
            "/static/%2fetc%2fpasswd",
            "/static//etc/passwd",
            "/static/app.js/",
            "/static/app.js%00.css",
            "/static/__init__.py",
            "/static/" + "a" * 5000,
            "/index.html",
            "/web/index.html",
        ]
        for trick in tricks:
            status, headers = raw(server.url, trick)
            assert status == 404, trick
            assert headers["content-type"] == "application/json"
        status, headers = raw(server.url, f"/?token={server.token}")
        assert status == 303
        assert headers["location"] == "/"


def raw(url: str, target: str) -> tuple[int, Message]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=10)
    try:
        connection.putrequest("GET", target, skip_accept_encoding=True)
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers
    finally:
        connection.close()


async def test_the_reference_of_the_api_needs_no_foreign_file(browser: httpx2.AsyncClient):
    answer = await browser.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!/)", answer.text)
    assert 'src="/static/docs.js"' in answer.text
