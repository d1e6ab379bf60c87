"""Where one shard can run: ordered rules that refuse with numbers, bookings, and the choice among what is left."""

from collections.abc import Mapping

import attrs

from llmgw.core.catalog import Model, Strategy
from llmgw.core.explain import Refusal
from llmgw.core.fleet import FleetView
from llmgw.core.replicas import Replicas


@attrs.frozen
class Need:
    """What one shard needs of a node."""

    model: str
    gpus: int = 0
    gpu_memory: int | None = None
    """Bytes on each GPU; None: whole GPUs."""
    memory: int = 0
    labels: dict[str, str] = attrs.field(factory=dict)
    gpu: str = ""
    fabric: str = ""
    port: int | None = None
    strategy: Strategy = Strategy.PACK

    @classmethod
    def of(cls, model: Model) -> "Need":
        """What a shard of that model needs. The model has a profile."""
        raise AssertionError


@attrs.frozen
class Placed:
    """The answer yes."""

    node: str
    gpus: tuple[str, ...] = ()


@attrs.frozen
class Unplaceable:
    """The answer no: every node of the fleet, with the first rule that refused it."""

    refusals: tuple[Refusal, ...] = ()
    """Sorted by node."""


class Books:
    """Who holds what: GPUs, host memory, fixed ports, from the decision until `gone`. Made anew for each wake."""

    def __init__(self, fleet: FleetView, replicas: Replicas) -> None:
        raise AssertionError


def place(
    need: Need, fleet: FleetView, books: Books, *, refuse: Mapping[str, tuple[str, str]], prefer: str = ""
) -> Placed | Unplaceable:
    """The best node for it, or why there is none.

    `refuse`: nodes that the caller rules out, with rule and detail. `prefer`: taken if it fits.
    """
    raise AssertionError
