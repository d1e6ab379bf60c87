"""What control remembers."""

from llmgw.core.replicas import Drain, Failure, Halt, Launch, Member, Replica, Replicas, retried


def test_a_launch_that_is_drained_or_stopped_is_ending() -> None:
    launch = Launch(1, "h", (Member("n1"),), 0.0)
    assert not launch.ending
    assert Launch(1, "h", (), 0.0, drain=Drain("why", 5.0)).ending
    assert Launch(1, "h", (), 0.0, stop="why").ending


def test_an_operator_may_say_that_it_is_worth_another_try() -> None:
    failed = Replica("m/0", "m", failures=(Failure(1.0, "n1"),), retry_at=99.0, last_node="n1")
    other = Replica("x/0", "x", failures=(Failure(1.0, "n1"),), retry_at=99.0)
    halts = {"m": Halt("h", "bad"), "x": Halt("h", "bad")}
    after = retried(Replicas({"m/0": failed, "x/0": other}, halts, 7), "m")
    assert after.by_id == {"m/0": Replica("m/0", "m", last_node="n1"), "x/0": other}
    assert (after.halts, after.epoch_max) == ({"x": Halt("h", "bad")}, 7)
