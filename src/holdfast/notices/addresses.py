"""The addresses that webhooks may be sent to. Users choose the URLs, so internal services must not be reachable through them."""

import asyncio
import socket
import threading
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from holdfast.tasks import start_thread

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_UNICAST = IPv6Network("2000::/3")
"""All public IPv6 addresses. Loopback, local, mapped and multicast addresses are outside it."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""IPv4 addresses behind a NAT64 gateway. A network without IPv4 reaches every IPv4 receiver through it."""
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # the host of an Azure machine: public by its number only
            "169.254.0.0/16",  # link-local, such as the metadata of a cloud machine
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)
"""The special-purpose registries of IANA. `is_global` differs between versions of Python, and includes multicast."""
_lookups = threading.BoundedSemaphore(64)
"""Limits the threads that a slow name server of a receiver can occupy. It is released when the lookup ends, not when its caller gives up."""


class LookupFailed(Exception):
    """A host name has no address, or there are too many lookups."""


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(address.packed[-4:]))
        if address not in _UNICAST:
            return False
    return not is_in(address, _NOT_PUBLIC)


def is_in(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    return any(address in network for network in networks)


def parse_address(text: str) -> Address | None:
    """Return the address with this text, or None if it is not an address. An IPv4 address that is mapped to IPv6 becomes IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host name. Raises `LookupFailed`.

    The lookup has a thread of its own. In the thread pool of the event loop, slow name servers of receivers would block all other
    users of the pool, and would delay the end of the process.
    """
    if not _lookups.acquire(blocking=False):
        raise LookupFailed("too many host names are being resolved")

    def look_up() -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        finally:
            _lookups.release()
        return [str(sockaddr[0]) for *_, sockaddr in found]

    try:
        texts = await asyncio.wrap_future(start_thread(look_up))
    except (OSError, UnicodeError) as error:
        raise LookupFailed(f"{host} cannot be resolved") from error
    addresses = [address for text in texts if (address := parse_address(text)) is not None]
    return list(dict.fromkeys(addresses))
