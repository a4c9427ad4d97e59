"""Send webhooks to URLs that users chose.

A webhook is one POST request on a connection of its own, without a pool, proxy, cookie or redirect. The host name is resolved once, and the
connection goes to an address that was checked, so another answer of the name server has no effect. TLS verifies the certificate for the
host name. One deadline covers everything from the lookup to the end of the response.

https is required. http is only possible to an address that the operator allows, because anyone on the path could read the notice.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

import httpx2

from holdfast.errors import BadInput
from holdfast.notices.addresses import (
    Address,
    LookupFailed,
    Network,
    is_in,
    is_public,
    parse_address,
    resolve,
)
from holdfast.notices.signature import sign
from holdfast.version import __version__

_SETTING = "HOLDFAST_WEBHOOK_NETWORKS"
_LONGEST_URL = 2048
_HIGHEST_PORT = 65535
_READ_BYTES = 64 * 1024
"""About how much of a response body is read, so that a receiver can finish its response."""
_LONGEST_RETRY_AFTER = 24 * 3600
_TRIED_ADDRESSES = 4
_GONE = 410
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)\Z){_LABEL}")
"""A host name. If its last label is a number, resolvers take it for an address in another notation, such as `0x7f.1`."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one attempt to deliver a webhook."""

    status: int | None = None
    """The HTTP status, or None without a response."""
    error: str | None = None
    """The reason why the delivery failed, without the path and query of the URL. None if it succeeded."""
    retry_after: int | None = None
    """The seconds after which the receiver asks for the next attempt, at most a day."""

    @property
    def is_success(self) -> bool:
        """Whether the receiver accepted the webhook, with a status of 200 to 299."""
        return self.error is None

    @property
    def is_gone(self) -> bool:
        """Whether the receiver wants no more webhooks at this URL. Disable the subscription."""
        return self.status == _GONE


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL that was checked."""

    url: httpx2.URL
    host: str
    address: Address | None
    """The address in the URL, if it contains one instead of a name."""
    allow: Sequence[Network]

    @property
    def port(self) -> int:
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    def permits(self, address: Address) -> bool:
        """Return whether the webhook may be sent to this address."""
        return is_in(address, self.allow) or (self.url.scheme == "https" and is_public(address))

    async def addresses(self) -> list[Address]:
        """Return the addresses to try. Raises `LookupFailed`."""
        found = await resolve(self.host, self.port) if self.address is None else [self.address]
        if permitted := [address for address in found if self.permits(address)]:
            return permitted[:_TRIED_ADDRESSES]
        wanted = (
            f"public or in {_SETTING}" if self.url.scheme == "https" else f"in {_SETTING}, as http requires"
        )
        raise LookupFailed(f"{self.host} has no address that is {wanted}")


def check_url(url: str, *, allow: Sequence[Network] = ()) -> None:
    """Check the URL of a new subscription: its form, and its address if it contains one. Raises `BadInput`.

    A host name is not resolved. `send` checks its addresses each time.
    """
    _parse(url, allow)


def _parse(url: str, allow: Sequence[Network]) -> _Target:
    if len(url) > _LONGEST_URL:
        raise BadInput(problem=f"the webhook URL is longer than {_LONGEST_URL} characters")
    try:
        parsed = httpx2.URL(url)
        host, port = parsed.raw_host.decode("ascii"), parsed.port
    except (httpx2.InvalidURL, ValueError):
        raise BadInput(problem="the webhook URL is malformed") from None
    if parsed.scheme not in {"https", "http"}:
        raise BadInput(problem="the webhook URL must begin with https://")
    if parsed.userinfo:
        raise BadInput(problem="the webhook URL must not contain a user name or password")
    if port is not None and not 1 <= port <= _HIGHEST_PORT:
        raise BadInput(problem=f"the port of the webhook URL must be between 1 and {_HIGHEST_PORT}")
    address = None if "%" in host else parse_address(host)
    if address is None and not _NAME.fullmatch(host):
        raise BadInput(
            problem="the host of the webhook URL must be a name without a period at its end, "
            "an IPv4 address of four decimal numbers, or an IPv6 address in brackets without a zone"
        )
    target = _Target(parsed, host, address, allow)
    if parsed.scheme == "http" and not (allow if address is None else is_in(address, allow)):
        raise BadInput(
            problem="the operator does not allow http for this webhook URL. Use https. To allow http to a network, "
            f"the operator sets {_SETTING} for the API servers and the workers"
        )
    if address is not None and not target.permits(address):
        raise BadInput(
            problem=f"the address {address} is not public, and the operator does not allow it. To allow its network, "
            f"the operator sets {_SETTING} for the API servers and the workers"
        )
    return target


async def send(
    url: str,
    body: bytes,
    *,
    id: str,
    secrets: Sequence[str],
    at: datetime | None = None,
    timeout: float = 10.0,  # noqa: ASYNC109 - limits the delivery, which then has a result
    allow: Sequence[Network] = (),
) -> DeliveryResult:
    """Send a webhook once, and return the result. A JSON body is signed with each of the secrets.

    `at` is the time of the attempt, by default that of this machine: receivers refuse one that differs from theirs by minutes.
    Never raises an error for the URL, the network or the receiver. Raises `BadInput` if the id or a secret is malformed. The operator permits
    addresses that are not public, and http to them, with the networks in `allow`.
    """
    headers = sign(id, int((at or datetime.now(UTC)).timestamp()), body, secrets)
    deadline = asyncio.get_running_loop().time() + timeout
    try:
        target = _parse(url, allow)
    except BadInput as error:
        return DeliveryResult(error=str(error.facts["problem"]))
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await target.addresses()
        response = await _post(target, addresses, body, headers, deadline)
    except LookupFailed as error:
        return DeliveryResult(error=str(error))
    except TimeoutError:
        return DeliveryResult(error=f"no response from {target.host} within {timeout:g} seconds")
    except (httpx2.TransportError, OSError) as error:
        return DeliveryResult(error=_describe(error, target.host))
    return _result(response)


async def _post(
    target: _Target, addresses: Sequence[Address], body: bytes, headers: dict[str, str], deadline: float
) -> httpx2.Response:
    """Send the request to the first address that accepts a connection. Once it is sent, it is not repeated."""
    share = (deadline - asyncio.get_running_loop().time()) / len(addresses)
    headers = headers | {
        "host": target.url.netloc.decode("ascii"),
        "accept-encoding": "identity",
        "connection": "close",
        "content-type": "application/json",
        "user-agent": f"holdfast/{__version__}",
    }
    name = target.host if target.address is None else str(target.address)
    extensions = {"sni_hostname": name, "timeout": {"connect": share}}
    for index, address in enumerate(addresses):
        url = target.url.copy_with(host=str(address))
        request = httpx2.Request("POST", url, content=body, headers=headers, extensions=extensions)
        try:
            return await _exchange(request, deadline)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if index == len(addresses) - 1:
                raise
    raise AssertionError


async def _exchange(request: httpx2.Request, deadline: float) -> httpx2.Response:
    """Send a request and return its response. The status counts, even if the body does not end in time.

    A client would follow the environment and log the URL; its transport does neither.
    """
    async with httpx2.AsyncHTTPTransport(verify=_tls(), trust_env=False) as transport:
        async with asyncio.timeout_at(deadline):
            response = await transport.handle_async_request(request)
        try:
            with suppress(httpx2.TransportError, OSError):  # TimeoutError is an OSError
                async with asyncio.timeout_at(deadline):
                    await _discard_body(response)
        finally:
            await response.aclose()
        return response


async def _discard_body(response: httpx2.Response) -> None:
    size = 0
    async with aclosing(response.aiter_raw()) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size >= _READ_BYTES:
                return


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _result(response: httpx2.Response) -> DeliveryResult:
    status = response.status_code
    if response.is_success:
        return DeliveryResult(status)
    error = f"the receiver responded with status {status}"
    if response.has_redirect_location:
        error += ". Redirects are not followed: change the URL of the webhook"
    return DeliveryResult(status, error, _retry_after(response.headers.get("retry-after", "")))


def _retry_after(text: str) -> int | None:
    """Return the seconds in the header, which is a number or a date."""
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), _LONGEST_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
        seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(int(seconds), 0), _LONGEST_RETRY_AFTER)


def _describe(error: BaseException, host: str) -> str:
    """Return the reason of a failure. It contains nothing that the receiver sent."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of {host} is not valid: {cause.verify_message.rstrip('.')}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS with {host} failed: {cause.reason or 'connection closed'}"
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        codes = [cause.errno for cause in _causes(error) if isinstance(cause, OSError) and cause.errno]
        return f"cannot connect to {host}: {os.strerror(codes[-1]) if codes else 'no response'}"
    return f"{host} closed the connection or sent an invalid response"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
