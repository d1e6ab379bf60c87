"""What link and supervisor say to each other.

The link puts `LinkEvent`s into the supervisor's inbox, in the order in which control's messages came. The supervisor
puts `Upward`s into the channel that came with `Opened`, in the order in which they are to be sent: a list in it was
made after every earlier command was handled, and an `Ack` before it belongs to what the list shows.
"""

import attrs
import trio

from llmgw.core.lifecycle import ShardReport
from llmgw.wire.messages import Ack, DrainShard, LogRequest, ShardStatus, StartShard, StopShard

UPLINK_MAX = 256
"""What waits for the link, which only hands it on: more means that it hangs."""

Command = StartShard | StopShard | DrainShard

# --- from the link --------------------------------------------------------------------------------------------


@attrs.frozen
class Opened:
    """A connection to control is there; it is answered by a `ShardList`. It replaces the connection before."""

    connection: int
    uplink: "Uplink"
    address: str
    """Under which control and routers reach this node's engines."""


@attrs.frozen
class Accepted:
    """Control has accepted the registration: statuses may be sent."""

    connection: int
    status_acked: int


@attrs.frozen
class Acked:
    """Control has handled every status up to this number."""

    number: int


@attrs.frozen
class Commanded:
    """A command of control's."""

    connection: int
    command: Command


@attrs.frozen
class ListAsked:
    """A `ShardList` is wanted."""


@attrs.frozen
class OutputAsked:
    """The end of a shard's output is wanted, as an `Output`."""

    request: LogRequest


LinkEvent = Opened | Accepted | Acked | Commanded | ListAsked | OutputAsked

# --- from the supervisor --------------------------------------------------------------------------------------


@attrs.frozen
class ShardList:
    """Every shard that this node holds."""

    shards: tuple[ShardReport, ...]


@attrs.frozen
class Output:
    """The end of a shard's output."""

    request_id: int
    data: bytes = b""
    reason: str = ""
    """Why there is nothing, or not all; empty: this is what was asked for."""


Upward = Ack | ShardStatus | ShardList | Output
Uplink = trio.MemorySendChannel[Upward]


def open_uplink() -> tuple[Uplink, trio.MemoryReceiveChannel[Upward]]:
    """A channel for `Opened`. The supervisor closes it when it is full, and the link its end when it is done."""
    return trio.open_memory_channel[Upward](UPLINK_MAX)
