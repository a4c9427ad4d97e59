import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.notices.webhook import DeliveryResult
from tests.notices.receiver import Names, Receiver, deliver


def certificate(folder: Path, host: str, *, days: int = 1) -> Path:
    """Write a self-signed certificate with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    try:
        subject: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{host}.pem"
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return path


def server_tls(path: Path, seen: list[str | None] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    if seen is not None:
        context.sni_callback = lambda _, name, __: seen.append(name)
    return context


@pytest.mark.parametrize("host", ["hooks.example", "127.0.0.1"])
async def test_tls_verifies_the_host_of_the_url(
    host: str, tmp_path: Path, names: Callable[..., Names], trust: Callable[[Path], None]
):
    path, seen = certificate(tmp_path, host), list[str | None]()
    trust(path)
    async with Receiver().listening(server_tls(path, seen)) as receiver:
        resolver = names(["127.0.0.1"])
        assert await deliver(receiver.url(host, "https")) == DeliveryResult(status=204)
    assert receiver.requests[0][1]["host"] == f"{host}:{receiver.port}"
    if host == "hooks.example":
        assert (seen, resolver.lookups) == (["hooks.example"], ["hooks.example"])


@pytest.mark.parametrize(
    ("host", "days", "is_trusted", "problem"),
    [
        ("hooks.example", 1, False, "self-signed certificate"),
        ("hooks.example", -1, True, "certificate has expired"),
        ("other.example", 1, True, "Hostname mismatch, certificate is not valid for 'hooks.example'"),
        ("127.0.0.1", 1, True, "Hostname mismatch, certificate is not valid for 'hooks.example'"),
    ],
)
async def test_bad_certificates_are_failures(
    host: str,
    days: int,
    is_trusted: bool,
    problem: str,
    tmp_path: Path,
    names: Callable[..., Names],
    trust: Callable[[Path], None],
):
    path = certificate(tmp_path, host, days=days)
    if is_trusted:
        trust(path)
    async with Receiver().listening(server_tls(path)) as receiver:
        names(["127.0.0.1"])
        result = await deliver(receiver.url("hooks.example", "https"))
    assert result == DeliveryResult(error=f"the certificate of hooks.example is not valid: {problem}")
    assert receiver.requests == []


async def test_a_receiver_without_tls_is_a_failure():
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        result = await deliver(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert result.error is not None
    assert "127.0.0.1" in result.error


async def test_invalid_data_after_the_tls_handshake_is_a_failure(
    tmp_path: Path, trust: Callable[[Path], None]
):
    path = certificate(tmp_path, "127.0.0.1")
    trust(path)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def corrupt() -> None:
            plain, _ = listener.accept()
            with server_tls(path).wrap_socket(plain, server_side=True) as connection:
                connection.recv(1)
                os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)
                with contextlib.suppress(OSError):
                    while connection.recv(1000):
                        pass

        corrupting = asyncio.create_task(asyncio.to_thread(corrupt))
        result = await deliver(f"https://127.0.0.1:{listener.getsockname()[1]}/")
        await corrupting
    assert result.error is not None
    assert result.error.startswith("TLS with 127.0.0.1 failed")
