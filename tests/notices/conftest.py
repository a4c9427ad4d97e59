import asyncio
import socket
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.notices import webhook
from tests.notices.receiver import Names


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Names]:
    def set_names(*answers: Sequence[str]) -> Names:
        resolver = Names(*answers)
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        return resolver

    return set_names


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> Generator[list[Any], None, None]:
    """Record connections instead of making them, and fail if there is one."""
    attempts: list[Any] = []

    async def connect(*args: Any, **options: Any) -> Any:
        attempts.append((args, options))
        raise OSError

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connect)
    yield attempts
    assert attempts == []


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[Path], None], None, None]:
    """Trust a certificate as an operator does."""

    def set_file(path: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        webhook._tls.cache_clear()

    yield set_file
    webhook._tls.cache_clear()
