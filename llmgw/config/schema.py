"""The settings of `cluster.toml` and `node.toml` as classes: one attribute a setting, with its default.

Models, keys and their parts are the classes of the core themselves, so that a model has one description. Inside,
durations are seconds, sizes are bytes and paths are absolute. A table `notes` (or a key of that name) is allowed
in every table for the operator's own remarks, and is read by nobody.
"""

import enum
from pathlib import Path
from typing import Annotated

import attrs

from llmgw.core.address import Address
from llmgw.core.catalog import Catalog, Model
from llmgw.core.hardware import PortRange
from llmgw.core.routing import ClientKey
from llmgw.core.units import Duration, Size

AGENT_PORT = 7070
"""Where agents and routers dial control."""
ADMIN_PORT = 7071
ROUTER_PORT = 8080
METRICS_PORT = 7072
"""Of an agent or a llmgw-router of its own."""


@attrs.frozen
class AddressRule:
    """How one address is written: mark it with `Annotated`."""

    default_port: int
    """Where the setting names none."""
    listens: bool
    """We bind it: port 0, any that is free, is allowed."""


AgentListen = Annotated[Address, AddressRule(AGENT_PORT, listens=True)]
AdminListen = Annotated[Address, AddressRule(ADMIN_PORT, listens=True)]
RouterListen = Annotated[Address, AddressRule(ROUTER_PORT, listens=True)]
MetricsListen = Annotated[Address, AddressRule(METRICS_PORT, listens=True)]
DialControl = Annotated[Address, AddressRule(AGENT_PORT, listens=False)]


class LogFormat(enum.StrEnum):
    """What log lines look like."""

    AUTO = "auto"
    """Human on a terminal, JSON otherwise."""
    HUMAN = "human"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least severe line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Log:
    """`[log]`."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


@attrs.frozen
class Metrics:
    """`[metrics]`: of an agent, or of a llmgw-router of its own. Control serves its metrics on the admin address."""

    listen: MetricsListen | None = None


@attrs.frozen
class Tls:
    """`[control.tls]`, `[admin.tls]`, `[router.tls]`."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


@attrs.frozen
class Control:
    """`[control]`: the port that agents and routers dial, and how patient control is with them."""

    listen: AgentListen | None = None
    """None: no agent port, the router is alone."""
    heartbeat: Duration = Duration(2.0)
    """The least interval; control stretches it with the fleet."""
    unreachable_after_missed: int = 3
    lost_after: Duration = Duration(180.0)
    """Of witnessed silence."""
    recover_for: Duration = Duration(300.0)
    """The longest time after a start in which nothing is stopped or expired."""
    insecure: bool = False
    """Plaintext beyond loopback."""
    tls: Tls | None = None


@attrs.frozen
class Admin:
    """`[admin]`: status, metrics and the operator's commands over HTTP."""

    listen: AdminListen = Address("127.0.0.1", ADMIN_PORT)
    insecure: bool = False
    """Plaintext beyond loopback."""
    tls: Tls | None = None


@attrs.frozen
class Router:
    """`[router]`: the OpenAI-compatible address."""

    listen: RouterListen = Address("127.0.0.1", ROUTER_PORT)
    control: DialControl | None = None
    """Whom a llmgw-router of its own follows; None: it serves the static endpoints of its file."""
    workers: int = 1
    connect_timeout: Duration = Duration(3.0)
    first_byte_timeout: Duration = Duration(900.0)
    idle_timeout: Duration = Duration(300.0)
    body_max: Size = Size(64 * 1024**2)
    tls: Tls | None = None


@attrs.frozen
class ClusterConfig:
    """`cluster.toml`: what llmgw-control and llmgw-router read."""

    state_dir: Path
    """Default: `control` in the machine's or the user's state folder."""
    control: Control = Control()
    admin: Admin = Admin()
    router: Router = Router()
    keys: tuple[ClientKey, ...] = ()
    """None: no key is needed."""
    models: tuple[Model, ...] = ()
    log: Log = Log()
    metrics: Metrics = Metrics()

    @property
    def catalog(self) -> Catalog:
        """The models by name, in the order of the file."""
        return Catalog({model.name: model for model in self.models})


@attrs.frozen
class GpuFilter:
    """`[gpu_filter]`: which GPUs are used, by UUID."""

    only: tuple[str, ...] = ()
    """Empty: all."""
    exclude: tuple[str, ...] = ()


@attrs.frozen
class FabricConfig:
    """`[[fabrics]]`: an RDMA network and this node's adapters on it."""

    name: str
    hcas: tuple[str, ...]


@attrs.frozen
class DeclaredGpu:
    """`[[gpus]]`: a GPU where there is no NVML to ask."""

    uuid: str
    memory: Size
    name: str = ""


@attrs.frozen
class NodeConfig:
    """`node.toml`: what llmgw-agent reads."""

    node_id: str
    """Default: the host's name."""
    control: DialControl
    """llmgw-control's `[control] listen`, as this node reaches it. Required."""
    state_dir: Path
    """Default: a folder named after the node in the machine's or the user's state folder."""
    models_dir: Path
    """Where model files are; a relative `profile.model` is under it. Default: `models` in that folder."""
    address: str = ""
    """Host under which control and routers reach this node's engines; empty: that of the connection to control."""
    ports: PortRange = PortRange(20000, 20999)
    """For engines."""
    stop_engines_on_exit: bool = False
    labels: dict[str, str] = attrs.field(factory=dict)
    gpu_filter: GpuFilter = GpuFilter()
    fabrics: tuple[FabricConfig, ...] = ()
    gpus: tuple[DeclaredGpu, ...] = ()
    log: Log = Log()
    metrics: Metrics = Metrics()
