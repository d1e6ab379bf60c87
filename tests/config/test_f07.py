"""F07: splitting at a colon broke IPv6.

There is no separate key for a port: an address has its port in it, or takes the setting's default. An engine bound to
::1 with a router in front of it, and `localhost` on a machine where only one family listens, are in
tests/e2e/test_config_cases.py with real processes.
"""

import random
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pytest
import trio

from llmgw.agent.probe import Exchange
from llmgw.config.load import Loaded
from llmgw.config.schema import ADMIN_PORT, AGENT_PORT, ROUTER_PORT, ClusterConfig, NodeConfig
from llmgw.core.address import Address
from llmgw.engines.probes import names_request
from llmgw.errors import Mistake
from llmgw.net.dial import Attempt, connect_tcp, keep_dialling

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]
Mistakes: TypeAlias = Callable[..., list[Mistake]]

OPEN = "insecure = true\n"

RIGHT = {
    "[::1]:7000": ("::1", 7000),
    "::1": ("::1", None),
    "[::1]": ("::1", None),
    "[::]:7000": ("::", 7000),
    "localhost:7000": ("localhost", 7000),
    "fe80::1%eth0": ("fe80::1%eth0", None),
    "[fe80::1%eth0]:7000": ("fe80::1%eth0", 7000),
    "[2001:503:ba3e::2:30]": ("2001:503:ba3e::2:30", None),
    "[2001:503:ba3e::2]:30": ("2001:503:ba3e::2", 30),
    "2001:503:ba3e::2:ab": ("2001:503:ba3e::2:ab", None),
    "127.0.0.1": ("127.0.0.1", None),
    "127.0.0.1:7000": ("127.0.0.1", 7000),
    "head": ("head", None),
}
"""Written -> host, and port or None where the setting's default is taken."""

WRONG = {
    "::1:7000": "write [::1]:7000",
    "2001:503:ba3e::2:30": "write [2001:503:ba3e::2]:30 or [2001:503:ba3e::2:30]:PORT",
    ":7000": "0.0.0.0:7000 or [::]:7000",
    "127.0.0.1:99999": "a port is a number from 1 to 65535",
    "[::1]:99999": "a port is a number from 1 to 65535",
    "[::1]:": "a port is a number from 1 to 65535",
    "127.0.0.1:": "a port is a number from 1 to 65535",
    "[::1": "",
    "[127.0.0.1]:7000": "",
    "http://[::1]:7000": "an address has no scheme",
    "": "",
}
"""Written -> what the hint says."""


@pytest.mark.parametrize(("text", "means"), RIGHT.items())
def test_f07_as_a_listen_address(text: str, means: tuple[str, int | None], load_cluster_text: LoadCluster) -> None:
    """Bracketed forms work, and plain addresses take the default port of their setting."""
    host, port = means
    config = load_cluster_text(
        f'[control]\nlisten = "{text}"\n{OPEN}[admin]\nlisten = "{text}"\n{OPEN}[router]\nlisten = "127.0.0.2:1"\n'
        if port is None
        else f'[control]\nlisten = "{text}"\n{OPEN}'
    ).config
    assert config.control.listen == Address(host, port or AGENT_PORT)
    if port is None:
        assert config.admin.listen == Address(host, ADMIN_PORT)
        router = load_cluster_text(f'[router]\nlisten = "{text}"\n').config.router
        assert router.listen == Address(host, ROUTER_PORT)


@pytest.mark.parametrize(("text", "means"), RIGHT.items())
def test_f07_as_an_address_to_dial(text: str, means: tuple[str, int | None], load_node_text: LoadNode) -> None:
    """In the file, in the environment and on the command line."""
    expected = Address(means[0], means[1] or AGENT_PORT)
    assert load_node_text(f'control = "{text}"\n').config.control == expected
    assert load_node_text("", {"LLMGW_CONTROL": text}).config.control == expected
    assert load_node_text("", options={"control": ("--server", text)}).config.control == expected


@pytest.mark.parametrize(("text", "hint"), WRONG.items())
def test_f07_what_is_ambiguous_or_out_of_range_is_refused(text: str, hint: str, cluster_mistakes: Mistakes) -> None:
    """Never split at its last colon: with the brackets that were probably meant, and the range of ports."""
    for table, key in (("control", "listen"), ("admin", "listen"), ("router", "listen"), ("router", "control")):
        (mistake,) = cluster_mistakes(f'[{table}]\n{key} = "{text}"\n')
        assert mistake.path == f"{table}.{key}"
        assert mistake.expected == 'expected "host:port"'
        assert hint in mistake.hint


def test_f07_an_address_of_a_node_has_neither_brackets_nor_a_port(
    load_node_text: LoadNode, node_mistakes: Mistakes
) -> None:
    for host in ("::1", "2001:503:ba3e::2:ab", "fe80::1%eth0", "10.0.0.5", "gpu1.example.org"):
        assert load_node_text(f'control = "a"\naddress = "{host}"\n').config.address == host
    for host in ("[::1]", "10.0.0.5:80", "http://a"):
        (mistake,) = node_mistakes(f'address = "{host}"\n')
        assert "without a port, brackets or a scheme" in mistake.expected


@pytest.mark.parametrize("text", RIGHT)
def test_f07_what_is_printed_can_be_pasted_back(text: str, load_node_text: LoadNode) -> None:
    address = load_node_text(f'control = "{text}"\n').config.control
    assert load_node_text(f'control = "{address}"\n').config.control == address


@pytest.mark.parametrize("host", ["::1", "2001:503:ba3e::2:30"])
def test_f07_urls_of_probes_have_brackets(host: str) -> None:
    """What an engine is asked names it as a URL would; what routers send is in tests/router."""
    head = Exchange(names_request(), host, 20000).request.decode()
    assert f"\r\nHost: [{host}]:20000\r\n" in head


def test_f07_static_endpoints_have_brackets(load_cluster_text: LoadCluster, cluster_mistakes: Mistakes) -> None:
    def model(url: str) -> str:
        return f'[[models]]\nname = "a"\nendpoints = [{{ url = "{url}" }}]\n'

    url = load_cluster_text(model("http://[::1]:9000")).config.models[0].endpoints[0].url
    parts = urlsplit(url)
    assert (parts.hostname, parts.port) == ("::1", 9000)
    for wrong in ("http://::1:9000", "http://[::1]:99999", "http://[::1:9000"):
        assert cluster_mistakes(model(wrong))[0].path == "models[0].endpoints[0].url"


class BothFamilies(trio.abc.HostnameResolver):
    """`localhost` is ::1 and 127.0.0.1, as on most machines, and on every machine in this test."""

    async def getaddrinfo(self, host: bytes | None, port: bytes | str | int | None, *_: int, **__: int) -> Any:
        await trio.lowlevel.checkpoint()
        assert host in {b"localhost", "localhost"}
        number = int(port or 0)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", number, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)),
        ]

    async def getnameinfo(self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int) -> tuple[str, str]:
        raise NotImplementedError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_f07_localhost_works_when_only_one_family_listens(host: str) -> None:
    """One attempt tries all of a name's addresses."""
    trio.socket.set_custom_hostname_resolver(BothFamilies())
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        address = Address("localhost", listener.getsockname()[1])
        attempts: list[Attempt] = []
        async with trio.open_nursery() as nursery:

            async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
                attempts.append(attempt)
                nursery.cancel_scope.cancel()
                await stream.aclose()

            nursery.start_soon(partial(keep_dialling, address, converse, rng=random.Random(1), connect=connect_tcp))
    assert len(attempts) == 1
