from ipaddress import ip_network

import pytest

from holdfast.notices.addresses import is_in, is_public, parse_address

NOT_PUBLIC = [
    *(
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.9.9.9",
    ),
    *(
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.0.192",
        "192.0.2.1",
    ),
    *(
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
    ),
    *("239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *(
        "::",
        "::1",
        "::7f00:1",
        "100::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "4000::1",
    ),
    *("2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:db8::1", "3fff::1"),
    *(
        "2002:7f00:1::",
        "2002:808:808::1",
        "5f00::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:0:127.0.0.1",
    ),
    *("64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8", "fe80::1%eth0"),
]
PUBLIC = [
    *(
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "198.17.255.255",
    ),
    *(
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "2001:200::1",
        "2a00::1",
    ),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
]


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_addresses_that_are_not_public(text: str):
    address = parse_address(text)
    assert address is not None
    assert not is_public(address)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text: str):
    address = parse_address(text)
    assert address is not None
    assert is_public(address)


def test_an_address_that_is_mapped_to_ipv6_is_that_of_ipv4():
    address = parse_address("::ffff:10.0.0.1")
    assert str(address) == "10.0.0.1"
    assert address is not None
    assert is_in(address, [ip_network("fc00::/7"), ip_network("10.0.0.0/8")])


@pytest.mark.parametrize(
    "text", ["127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433", "localhost", "", "\uff11\uff12\uff17.0.0.1"]
)
def test_other_notations_are_not_addresses(text: str):
    assert parse_address(text) is None
