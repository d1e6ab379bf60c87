from collections.abc import Callable
from typing import TypeAlias

import pytest

from llmgw.config.node_rules import UUID_EXPECTED
from llmgw.errors import Mistake

Mistakes: TypeAlias = Callable[..., list[Mistake]]


def fabric(name: str, hcas: str) -> str:
    return f'[[fabrics]]\nname = "{name}"\nhcas = {hcas}\n'


def gpu(uuid: str, memory: str = "80GiB") -> str:
    return f'[[gpus]]\nuuid = "{uuid}"\nmemory = "{memory}"\n'


RIGHT = {
    "nothing": "",
    "an address": 'address = "10.0.0.5"',
    "an IPv6 address": 'address = "fd00::5"',
    "a name": 'address = "gpu-a.example.org"',
    "loopback": 'address = "127.0.0.1"',
    "two fabrics": fabric("ib0", '["mlx5_0", "mlx5_1"]') + fabric("ib1", '["mlx5_2"]'),
    "two GPUs": gpu("GPU-a") + gpu("GPU-b"),
    "a slice": gpu("MIG-8d0c/7/0"),
    "a filter": '[gpu_filter]\nonly = ["GPU-a"]\nexclude = ["GPU-b"]',
    "labels": 'labels = { zone = "a", "rack.row" = "3 b" }',
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(text: str, node_mistakes: Mistakes) -> None:
    assert node_mistakes(text) == []


WRONG = {
    "an empty id": ('node_id = ""', "node_id", "letters, digits"),
    "an id that is a path": ('node_id = "../x"', "node_id", "letters, digits"),
    "an id that is too long": (f'node_id = "{"a" * 129}"', "node_id", "at most 128"),
    "an address that is all of ours": ('address = "0.0.0.0"', "address", "that others can reach"),
    "the same in IPv6": ('address = "::"', "address", "that others can reach"),
    "an address with a port": ('address = "10.0.0.5:80"', "address", "without a port"),
    "an address with brackets": ('address = "[::1]"', "address", "without a port, brackets"),
    "a URL": ('address = "http://a"', "address", "without a port, brackets or a scheme"),
    "an empty label": ('labels = { zone = "" }', "labels.zone", "printable"),
    "one fabric's name twice": (
        fabric("ib0", '["a"]') + fabric("ib0", '["b"]'),
        "fabrics[1].name",
        "no other fabric has",
    ),
    "a fabric without a name": (fabric("", '["a"]'), "fabrics[0].name", "the name of the network"),
    "a fabric without an adapter": (fabric("ib0", "[]"), "fabrics[0].hcas", "at least one adapter"),
    "an adapter without a name": (fabric("ib0", '[""]'), "fabrics[0].hcas[0]", "the name of an adapter"),
    "an adapter twice": (fabric("ib0", '["a", "b", "a"]'), "fabrics[0].hcas[2]", "listed once"),
    "an adapter in two fabrics": (
        fabric("ib0", '["a"]') + fabric("ib1", '["b", "a"]'),
        "fabrics[1].hcas[1]",
        'of no other fabric, got "a" (it is in fabric "ib0")',
    ),
    "a GPU by its index": (gpu("0"), "gpus[0].uuid", UUID_EXPECTED),
    "a GPU twice": (gpu("GPU-a") + gpu("GPU-a"), "gpus[1].uuid", "no other GPU has"),
    "a GPU without memory": (gpu("GPU-a", "0B"), "gpus[0].memory", "more than 0"),
    "a filter by index": ('[gpu_filter]\nonly = ["0"]', "gpu_filter.only[0]", UUID_EXPECTED),
    "a filter that contradicts itself": (
        '[gpu_filter]\nonly = ["GPU-a"]\nexclude = ["GPU-a"]',
        "gpu_filter.exclude[0]",
        "not in gpu_filter.only",
    ),
}


@pytest.mark.parametrize(("text", "path", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_at_its_path(text: str, path: str, says: str, node_mistakes: Mistakes) -> None:
    told = node_mistakes(text)
    assert [mistake.path for mistake in told] == [path]
    assert says in str(told[0])


def test_every_mistake_at_once(node_mistakes: Mistakes) -> None:
    text = 'address = "0.0.0.0"\nports = "9-1"\n' + fabric("ib0", "[]") + fabric("ib0", '["a", "a"]')
    assert [mistake.path for mistake in node_mistakes(text)] == [
        "address",
        "ports",
        "fabrics[0].hcas",
        "fabrics[1].name",
        "fabrics[1].hcas[1]",
    ]
