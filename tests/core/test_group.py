"""The working state of a wake."""

from typing import Any

import pytest

from llmgw.core.catalog import Catalog, Model, Update
from llmgw.core.group import COMMAND_AGAIN_SECONDS, Group, Slot, Wake, is_stranger, slot_of
from llmgw.core.nodes import FleetView
from llmgw.core.plan import Refused, RouterSeen, World
from llmgw.core.replicas import Launch, Member, Replica, Replicas


class Half:
    def random(self) -> float:
        return 0.5


def wake(**changes: Any) -> Wake:
    fields: dict[str, Any] = {"fleet": FleetView(), "replicas": Replicas(), "now": 100.0, "wall": 5000.5}
    return Wake.begin(World(catalog=Catalog(), **(fields | changes)), Half(), None, 7)


def test_an_epoch_follows_the_clock_and_is_never_used_twice() -> None:
    one = wake()
    assert [one.next_epoch(), one.next_epoch()] == [5000, 5001]
    one.epoch_max = 9000
    assert one.next_epoch() == 9001


def test_the_earliest_moment_is_when_it_wakes() -> None:
    one = wake()
    one.at(130.0)
    one.at_wall(5010.5)
    one.at(140.0)
    assert (one.due, one.waits) == (110.0, 3)


def test_a_refused_command_is_held_back() -> None:
    one = wake(refused=(Refused("m/0/0", 5, "stop", "no"),))
    assert one.held_back == {("m/0/0", 5, "stop"): 100 + COMMAND_AGAIN_SECONDS}
    assert one.due == 100 + COMMAND_AGAIN_SECONDS


def test_idle_is_confirmed_by_every_live_router_and_nothing_in_flight() -> None:
    key = ("m/0", 5)
    routers = (RouterSeen("a", 3, {key: 2}), RouterSeen("b", 4, {key: 1}))
    assert wake(routers=routers).in_flight("m/0", 5) == 3
    idle = (RouterSeen("a", 3), RouterSeen("b", 4))
    assert not wake(routers=idle).idle("m/0", 5), "nothing was published without it"
    assert not wake(routers=idle, withdrawn={key: 4}).idle("m/0", 5)
    assert wake(routers=idle, withdrawn={key: 3}).idle("m/0", 5)
    assert not wake(routers=routers, withdrawn={key: 3}).idle("m/0", 5)
    assert wake(withdrawn={key: 3}).idle("m/0", 5), "there is no router"


def test_a_stranger_is_spared_for_a_while() -> None:
    launch = Launch(1, "h", (Member("n1"),), 0.0, ours=False)
    view = FleetView(spare_strangers_until=150.0)
    assert is_stranger(wake(fleet=view), launch)
    assert not is_stranger(wake(fleet=view, now=150.0), launch)
    assert not is_stranger(wake(fleet=view), Launch(1, "h", (Member("n1"),), 0.0))
    assert not is_stranger(wake(), launch)


def group(**changes: Any) -> Group:
    return Group("m", Model("m", **changes), "h", {}, None)


@pytest.mark.parametrize(
    ("changes", "promised"),
    [
        ({"replicas": 0}, 0),
        ({"replicas": 1}, 1),
        ({"replicas": 3}, 2),
        ({"replicas": 1, "update": Update.STOP_FIRST}, 0),
        ({"replicas": 3, "update": Update.STOP_FIRST}, 2),
        ({"replicas": 3, "ready_min": 0}, 0),
        ({"replicas": 2, "ready_min": 5}, 2),
    ],
)
def test_what_a_model_is_promised(changes: dict[str, Any], promised: int) -> None:
    assert group(**changes).promised == promised


def test_a_new_slot_has_the_lowest_free_number() -> None:
    of_model = group()
    for number in (0, 2):
        of_model.put(Slot(Replica(f"m/{number}", "m"), number, []))
    assert of_model.new_slot().replica.id == "m/1"
    assert list(of_model.slots) == ["m/0", "m/1", "m/2"]


def test_launches_of_a_slot_are_sorted_changed_and_removed() -> None:
    view = FleetView()
    slot = slot_of(Replica("m/0", "m", (Launch(5, "h", (Member("n1"),), 0.0),)), view)
    slot.add(Launch(6, "h", (Member("n2"),), 0.0), view)
    assert [launch.epoch for launch in slot.replica.launches] == [6, 5]
    newest = slot.standings[0]
    slot.change(newest, Launch(6, "h", (Member("n2"),), 0.0, stop="why"))
    assert slot.replica.launches[0].stop == "why"
    slot.remove(slot.standings[0])
    assert [one.launch.epoch for one in slot.standings] == [5]
    assert slot.replica.last_node == "n2"
