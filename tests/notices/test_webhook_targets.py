import asyncio
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.notices import addresses
from holdfast.notices.webhook import DeliveryResult, check_url
from tests.notices.receiver import LONG, LOOPBACK, SOON, Names, Receiver, deliver, trap
from tests.notices.test_addresses import NOT_PUBLIC


@pytest.mark.parametrize("text", NOT_PUBLIC)
async def test_no_connection_goes_to_an_address_that_is_not_public(
    text: str, names: Callable[..., Names], unconnected: list[Any]
):
    with trap() as port, trap(port, socket.AF_INET6):
        resolver = names([text, text])
        result = await deliver(f"https://hooks.example:{port}/", allow=[])
        assert result == DeliveryResult(
            error="hooks.example has no address that is public or in HOLDFAST_WEBHOOK_NETWORKS"
        )
        assert resolver.lookups == ["hooks.example"]
        literal = f"[{text}]" if ":" in text else text
        assert not (await deliver(f"https://{literal}:{port}/", allow=[])).is_success
        with pytest.raises(BadInput):
            check_url(f"https://{literal}:{port}/")
        assert resolver.lookups == ["hooks.example"]


@pytest.mark.parametrize(
    "host",
    [
        *(
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "017700000001",
            "0177.0.0.1",
            "127.1",
            "127.0.0.1.",
            "1.2.3.4.5",
        ),
        *(
            "256.1.1.1",
            "hooks.example.",
            ".",
            "..",
            "a..b",
            "-a.example",
            "a-.example",
            "a b",
            "a%00b",
            "%31.1.1.1",
        ),
        *(
            "[::1%25lo]",
            "[fe80::1%eth0]",
            "[::1",
            "::1",
            "[127.0.0.1]",
            "[v1.a]",
            "",
            "hooks.0x",
            "x" * 64 + ".example",
        ),
        *(
            ".".join(["x" * 60] * 5),
            "\uff11\uff12\uff17.0.0.1",
            "\u2460.example",
            "hooks\u30020x7f",
            "\ud800.example",
            "a\\b",
            "a'b",
        ),
        *("hooks.example\t", " hooks.example", "h\nx"),
    ],
)
async def test_odd_hosts_are_refused(host: str, names: Callable[..., Names], unconnected: list[Any]):
    resolver = names()
    with pytest.raises(BadInput, match="webhook URL"):
        check_url(f"https://{host}/", allow=LOOPBACK)
    assert not (await deliver(f"https://{host}/")).is_success
    assert resolver.lookups == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://hooks.example/", "does not allow http"),
        ("http://8.8.8.8/", "does not allow http"),
        ("ftp://hooks.example/", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("hooks.example/x", "must begin with https://"),
        ("", "must begin with https://"),
        ("https://user@hooks.example/", "user name or password"),
        ("https://user:word@hooks.example/", "user name or password"),
        ("https://hooks.example\\@127.0.0.1/", "user name or password"),
        ("https://hooks.example:0/", "between 1 and 65535"),
        ("https://hooks.example:65536/", "between 1 and 65535"),
        ("https://hooks.example:-1/", "webhook URL"),
        ("https://hooks.example:x/", "webhook URL"),
        ("https://hooks.example/" + "x" * 2048, "longer than 2048"),
        ("https://127.0.0.1/", "127.0.0.1 is not public"),
        ("https://[::ffff:127.0.0.1]/", "127.0.0.1 is not public"),
    ],
)
async def test_urls_that_are_refused(url: str, problem: str, unconnected: list[Any]):
    with pytest.raises(BadInput, match=problem) as refused:
        check_url(url)
    assert "word" not in str(refused.value).replace("password", "")
    if "not public" in problem or "allow http" in problem:
        assert "HOLDFAST_WEBHOOK_NETWORKS for the API servers and the workers" in str(refused.value)
    result = await deliver(url, allow=[])
    assert result.error is not None
    assert problem in result.error


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example",
        "HTTPS://Hooks.Example:8443/a?b=c#d",
        "https://8.8.8.8:1/",
        "https://[2606:4700:4700::1111]/",
        "https://müller.example/",
        "https://a_b.example/",
        "https://0xa.example/",
        "https://receiver/",
    ],
)
def test_urls_that_are_accepted(url: str):
    check_url(url)


def test_the_operator_allows_addresses_and_http_to_them():
    allow = [ip_network("10.0.0.0/8")]
    check_url("https://10.1.2.3/", allow=allow)
    check_url("http://10.1.2.3/", allow=allow)
    check_url("http://receiver/", allow=allow)
    for url in ("http://8.8.8.8/", "https://192.168.0.1/"):
        with pytest.raises(BadInput):
            check_url(url, allow=allow)


async def test_http_goes_only_to_addresses_that_are_allowed(
    names: Callable[..., Names], unconnected: list[Any]
):
    names(["8.8.8.8"])
    result = await deliver("http://hooks.example/")
    assert result == DeliveryResult(
        error="hooks.example has no address that is in HOLDFAST_WEBHOOK_NETWORKS, as http requires"
    )


async def test_a_public_address_is_connected_to_by_its_number(
    names: Callable[..., Names], monkeypatch: pytest.MonkeyPatch
):
    attempts: list[tuple[str, int]] = []

    async def connect(_: Any, __: Any, host: str, port: int, **___: Any) -> Any:
        attempts.append((host, port))
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connect)
    names([f"8.8.8.{number}" for number in range(9)])
    result = await deliver("https://hooks.example:8443/", allow=[])
    assert result == DeliveryResult(error="cannot connect to hooks.example: Connection refused")
    assert attempts == [(f"8.8.8.{number}", 8443) for number in range(4)]


async def test_a_second_answer_of_the_name_server_has_no_effect(names: Callable[..., Names]):
    async with Receiver(host="127.0.0.2").listening() as receiver:
        with trap(receiver.port):
            resolver = names(["127.0.0.2"], ["127.0.0.1"])
            result = await deliver(receiver.url("hooks.example"), allow=[ip_network("127.0.0.2/32")])
    assert result.is_success
    assert resolver.lookups == ["hooks.example"]
    assert receiver.requests[0][1]["host"] == f"hooks.example:{receiver.port}"


async def test_of_several_addresses_only_those_that_are_permitted_are_tried(names: Callable[..., Names]):
    async with Receiver(host="127.0.0.2").listening() as receiver:
        with trap(receiver.port):
            names(["127.0.0.1", "::1", "10.0.0.1", "127.0.0.3", "127.0.0.2"])
            result = await deliver(receiver.url("hooks.example"), allow=[ip_network("127.0.0.2/31")])
    assert result.is_success


async def test_a_request_that_was_sent_is_not_repeated_at_the_next_address(names: Callable[..., Names]):
    async with Receiver(b"", host="127.0.0.2").listening() as receiver:
        with trap(receiver.port):
            names(["127.0.0.2", "127.0.0.1"])
            assert not (await deliver(receiver.url("hooks.example"))).is_success
    assert receiver.connections == 1


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")]
)
async def test_a_name_that_does_not_resolve(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert await deliver("https://hooks.example/") == DeliveryResult(error="hooks.example cannot be resolved")


async def test_slow_lookups_cost_at_most_the_timeout_and_their_number_is_limited(
    monkeypatch: pytest.MonkeyPatch,
):
    over = threading.Event()

    def wait(*_: Any, **__: Any) -> list[Any]:
        over.wait(LONG)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(addresses, "_lookups", threading.BoundedSemaphore(1))
    slow = await deliver("https://hooks.example/", seconds=SOON)
    assert slow == DeliveryResult(error="no response from hooks.example within 0.3 seconds")
    assert (await deliver("https://other.example/")).error == "too many host names are being resolved"
    over.set()
    async with asyncio.timeout(LONG):
        while (await deliver("https://other.example/")).error == "too many host names are being resolved":
            await asyncio.sleep(0.01)


async def test_proxies_and_credentials_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with trap() as port:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{port}")
        async with Receiver().listening() as receiver:
            assert (await deliver(receiver.url())).is_success
    [(line, headers, _)] = receiver.requests
    assert line.startswith("POST /hook")
    assert not {"authorization", "proxy-authorization"} & set(headers)
