"""What must be true between the settings of a `node.toml`, and within values that a type cannot judge."""

import ipaddress
import re
from collections.abc import Callable, Iterator

from llmgw.config.findings import Finding
from llmgw.config.schema import NodeConfig
from llmgw.core.address import parse_address
from llmgw.strict import Step

Path = tuple[Step, ...]
Rule = Callable[[NodeConfig], Iterator[Finding]]

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/_-]{1,100}")
UUID_EXPECTED = "expected a GPU's UUID, as GPU-8d0c... (nvidia-smi -L shows it)"


def check_node(config: NodeConfig) -> Iterator[Finding]:
    """Every finding of every rule, in their order."""
    for rule in NODE_RULES:
        yield from rule(config)


def node_id_is_plain(config: NodeConfig) -> Iterator[Finding]:
    """It is in file names, log lines and commands."""
    if not _NODE_ID.fullmatch(config.node_id):
        expected = "expected at most 128 letters, digits, '.', '_' and '-', the first a letter or digit"
        yield Finding(("node_id",), expected, config.node_id)


def address_can_be_reached(config: NodeConfig) -> Iterator[Finding]:
    """One host, without a port; never the address that means "all of mine"."""
    if not (host := config.address):
        return
    where: Path = ("address",)
    hint = "leave it out to take the local address of the connection to control"
    try:
        unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        unspecified = False
        try:
            named = parse_address(host, default_port=1).host == host
        except ValueError:
            named = False
        if not named:
            expected = "expected a host name or an IP address, without a port, brackets or a scheme"
            yield Finding(where, expected, host, hint)
    if unspecified:
        yield Finding(where, "expected an address that others can reach", host, hint)


def labels_are_words(config: NodeConfig) -> Iterator[Finding]:
    """What `placement.labels` can ask for."""
    for name, value in config.labels.items():
        for text in (name, value):
            if not text or text != text.strip() or not text.isprintable():
                expected = "expected a name and a value of printable characters without blanks around them"
                yield Finding(("labels", name), expected, value)
                break


def fabric_names_are_unique(config: NodeConfig) -> Iterator[Finding]:
    """A fabric has a name, and no other fabric of the node has it."""
    names: list[str] = []
    for index, fabric in enumerate(config.fabrics):
        if not fabric.name.strip():
            yield Finding(("fabrics", index, "name"), "expected the name of the network", fabric.name)
        elif fabric.name in names:
            yield Finding(("fabrics", index, "name"), "expected a name that no other fabric has", fabric.name)
        names.append(fabric.name)


def fabrics_have_hcas(config: NodeConfig) -> Iterator[Finding]:
    """At least one adapter, and each is listed once."""
    for index, fabric in enumerate(config.fabrics):
        path: Path = ("fabrics", index, "hcas")
        if not fabric.hcas:
            yield Finding(path, "expected at least one adapter", fabric.hcas, "ls /sys/class/infiniband shows them")
        for position, hca in enumerate(fabric.hcas):
            if not hca.strip():
                yield Finding((*path, position), "expected the name of an adapter", hca)
            elif hca in fabric.hcas[:position]:
                yield Finding((*path, position), "expected an adapter that is listed once", hca)


def hcas_are_in_one_fabric(config: NodeConfig) -> Iterator[Finding]:
    """An adapter is plugged into one network."""
    holder: dict[str, str] = {}
    for index, fabric in enumerate(config.fabrics):
        for position, hca in enumerate(fabric.hcas):
            if hca in holder and hca not in fabric.hcas[:position]:
                hint = f'it is in fabric "{holder[hca]}"'
                yield Finding(("fabrics", index, "hcas", position), "expected an adapter of no other fabric", hca, hint)
        for hca in fabric.hcas:
            holder.setdefault(hca, fabric.name)


def gpus_are_known_by_uuid(config: NodeConfig) -> Iterator[Finding]:
    """Never by index: NVML and CUDA number them differently, and a reboot may renumber them."""
    uuids = [gpu.uuid for gpu in config.gpus]
    for index, gpu in enumerate(config.gpus):
        if not _UUID.fullmatch(gpu.uuid):
            yield Finding(("gpus", index, "uuid"), UUID_EXPECTED, gpu.uuid)
        elif gpu.uuid in uuids[:index]:
            yield Finding(("gpus", index, "uuid"), "expected a UUID that no other GPU has", gpu.uuid)
        if gpu.memory <= 0:
            yield Finding(("gpus", index, "memory"), "expected a size of more than 0", gpu.memory)
    for key, listed in (("only", config.gpu_filter.only), ("exclude", config.gpu_filter.exclude)):
        for position, uuid in enumerate(listed):
            if not _UUID.fullmatch(uuid):
                yield Finding(("gpu_filter", key, position), UUID_EXPECTED, uuid)
    for position, uuid in enumerate(config.gpu_filter.exclude):
        if uuid in config.gpu_filter.only:
            yield Finding(("gpu_filter", "exclude", position), "expected a GPU that is not in gpu_filter.only", uuid)


NODE_RULES: tuple[Rule, ...] = (
    node_id_is_plain,
    address_can_be_reached,
    labels_are_words,
    fabric_names_are_unique,
    fabrics_have_hcas,
    hcas_are_in_one_fabric,
    gpus_are_known_by_uuid,
)
