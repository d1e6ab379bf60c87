"""`host:port` as people write it, IPv6 included. Pure: names are not resolved here."""

import ipaddress

import attrs

PORT_MAX = 65535


@attrs.frozen
class Address:
    """A host (name or IP address, without brackets) and a port. `str()` can be pasted back into a configuration."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, default_port: int | None = None, free_port: bool = False) -> Address:
    """The address in `text`: `127.0.0.1:8080`, `[::1]:8080`, `name:8080`; without a port where there is a default.

    `free_port` allows port 0, "any that is free". Raises ValueError that says what was expected and what to write
    instead. An IPv6 address without brackets is never split at its last colon, since its end may be a group.
    """
    if text != text.strip() or not text:
        raise ValueError(f"expected host:port, got {text!r}")
    if "://" in text:
        raise ValueError(f"expected host:port, got {text!r} (an address has no scheme)")
    if text.startswith("["):
        return _bracketed(text, default_port, free_port=free_port)
    if text.count(":") > 1:
        return _bare_ipv6(text, default_port)
    host, colon, port = text.partition(":")
    if not host:
        raise ValueError(
            f"expected host:port, got {text!r} without a host (all addresses: 0.0.0.0:{port} or [::]:{port})"
        )
    if not all(letter.isalnum() or letter in "-._" for letter in host):
        raise ValueError(f"expected host:port, got {text!r} (not a host name or IP address: {host!r})")
    return Address(host, _port(port if colon else None, text, default_port, free_port=free_port))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket bound to `host` (`localhost`, 127.0.0.0/8, ::1)."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _bracketed(text: str, default_port: int | None, *, free_port: bool) -> Address:
    host, bracket, rest = text[1:].partition("]")
    if not bracket or not _is_ipv6(host):
        raise ValueError(f"expected [IPv6 address]:port, got {text!r}")
    if rest and not rest.startswith(":"):
        raise ValueError(f"expected [IPv6 address]:port, got {text!r}")
    return Address(host, _port(rest[1:] if rest else None, text, default_port, free_port=free_port))


def _bare_ipv6(text: str, default_port: int | None) -> Address:
    before, _, last = text.rpartition(":")
    if not _is_ipv6(text):
        hint = f" (write [{before}]:{last})" if _is_ipv6(before) else ""
        raise ValueError(f"expected host:port, got {text!r}{hint}")
    if last.isdecimal() and int(last) <= PORT_MAX and _is_ipv6(before):
        raise ValueError(
            f"expected host:port, got {text!r}: is {last} a port or part of the address? "
            f"(write [{before}]:{last} or [{text}]:PORT)"
        )
    if default_port is None:
        raise ValueError(f"expected host:port, got {text!r} without a port (write [{text}]:PORT)")
    return Address(text, default_port)


def _port(port: str | None, text: str, default_port: int | None, *, free_port: bool) -> int:
    if port is None:
        if default_port is None:
            raise ValueError(f"expected host:port, got {text!r} without a port")
        return default_port
    if not (port.isascii() and port.isdecimal()):
        raise ValueError(f"expected host:port, got {text!r} (a port is a number from 1 to {PORT_MAX})")
    number = int(port) if len(port) < 9 else PORT_MAX + 1  # noqa: PLR2004  int() of endless digits is slow
    if number > PORT_MAX or (number == 0 and not free_port):
        raise ValueError(f"expected host:port, got {text!r} (a port is a number from 1 to {PORT_MAX})")
    return number


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
