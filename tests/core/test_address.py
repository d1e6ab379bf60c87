"""Addresses as people write them (field case F07)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.address import Address, is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[::1]:7000", Address("::1", 7000)),
        ("::1", Address("::1", 7070)),
        ("[::1]", Address("::1", 7070)),
        ("[::]:7000", Address("::", 7000)),
        ("localhost:7000", Address("localhost", 7000)),
        ("localhost", Address("localhost", 7070)),
        ("fe80::1%eth0", Address("fe80::1%eth0", 7070)),
        ("[2001:503:ba3e::2:30]", Address("2001:503:ba3e::2:30", 7070)),
        ("127.0.0.1", Address("127.0.0.1", 7070)),
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("gpu-a.example.org:1", Address("gpu-a.example.org", 1)),
    ],
)
def test_f07_right_addresses_and_the_default_port(text: str, expected: Address) -> None:
    assert parse_address(text, default_port=7070) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("::1:7000", r"\[::1\]:7000"),
        ("2001:503:ba3e::2:30", r"\[2001:503:ba3e::2\]:30"),
        ("1:2:3:4:5:6:7:8:9000", r"\[1:2:3:4:5:6:7:8\]:9000"),
        (":7000", r"0\.0\.0\.0:7000"),
        ("127.0.0.1:99999", "from 1 to 65535"),
        ("127.0.0.1:0", "from 1 to 65535"),
        ("127.0.0.1:" + "9" * 5000, "from 1 to 65535"),
        ("127.0.0.1:8e3", "from 1 to 65535"),
        ("127.0.0.1:٣", "from 1 to 65535"),
        ("[::1]:", "from 1 to 65535"),
        ("[::1", "IPv6"),
        ("[nonsense]:1", "IPv6"),
        ("[::1]7000", "IPv6"),
        ("a:b:c", "host:port"),
        ("http://a", "no scheme"),
        ("a/b:1", "host name"),
        ("", "host:port"),
        (" a:1", "host:port"),
    ],
)
def test_f07_wrong_addresses_say_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_address(text, default_port=7070)


def test_a_port_is_needed_where_there_is_no_default() -> None:
    for text in ("127.0.0.1", "::1", "[::1]"):
        with pytest.raises(ValueError, match="without a port"):
            parse_address(text)


def test_port_0_only_where_a_free_port_makes_sense() -> None:
    assert parse_address("127.0.0.1:0", free_port=True) == Address("127.0.0.1", 0)


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_property_a_printed_address_can_be_pasted_back(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_address(str(address)) == address


@given(st.text(max_size=40))
def test_property_any_text_gives_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text, default_port=1)
    except ValueError:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu-a", "::ffff:10.0.0.1"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
