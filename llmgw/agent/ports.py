"""Which ports engines get, and which address they bind."""

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Collection

import attrs

from llmgw.agent.shim_engine import port_taken
from llmgw.core.address import is_loopback
from llmgw.core.hardware import PortRange


@attrs.frozen
class PortChoice:
    """The ports of one launch, or why there are none."""

    port: int = 0
    rendezvous_port: int | None = None
    refusal: str = ""


class PortChooser:
    """Chooses from the node's range, each time from where it stopped: a port that was just freed may still get
    requests that were meant for the engine before.
    """

    def __init__(self, ports: PortRange, is_free: Callable[[int], bool]) -> None:
        self._ports = ports
        self._size = ports.last - ports.first + 1
        self._next = 0
        self._is_free = is_free

    def choose(
        self, fixed: int | None, *, rendezvous: bool, used: Collection[int], avoided: Collection[int]
    ) -> PortChoice:
        """A port (`fixed`, where the profile says so) and, with `rendezvous`, a second one.

        `used` are those of our shards, `avoided` those on which an engine found somebody else lately: they are
        taken only where nothing else is free.
        """
        if fixed is not None:
            if fixed in used:
                return PortChoice(refusal=f"port {fixed} of the profile is in use by another shard of this node")
            if not self._is_free(fixed):
                return PortChoice(refusal=f"port {fixed} of the profile is taken by a process that is not ours")
        chosen: list[int] = [] if fixed is None else [fixed]
        wanted = 2 if rendezvous else 1
        for excluded in ([*used, *avoided], [*used]):
            while len(chosen) < wanted:
                port = self._find([*excluded, *chosen])
                if port is None:
                    break
                chosen.append(port)
        if len(chosen) < wanted:
            return PortChoice(refusal=f"no port of {self._ports.first}-{self._ports.last} is free")
        return PortChoice(chosen[0], chosen[1] if rendezvous else None)

    def _find(self, excluded: Collection[int]) -> int | None:
        for step in range(self._size):
            place = (self._next + step) % self._size
            port = self._ports.first + place
            if port not in excluded and self._is_free(port):
                self._next = (place + 1) % self._size
                return port
        return None


def port_is_free(port: int) -> bool:
    """Whether nobody listens on `port` at any address of this machine; the same test that the shim makes."""
    return not port_taken(port)


def is_local(host: str) -> bool:
    """Whether `host` is an IP address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as test:
        test.bind((host, 0))
        return True
    return False


def host_to_bind(address: str, is_local: Callable[[str], bool] = is_local) -> str:
    """Where an engine listens that others reach at `address`: there and nowhere else, if it is this machine's own;
    at every address where it is not (a name, or the outside of a translated network).
    """
    if address == "localhost":
        return "127.0.0.1"
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "0.0.0.0"
    if is_loopback(address) or is_local(address):
        return address
    return "::" if ip.version == 6 else "0.0.0.0"  # noqa: PLR2004


def host_to_dial(bound: str) -> str:
    """Where on this machine an engine is reached that is bound to `bound`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
