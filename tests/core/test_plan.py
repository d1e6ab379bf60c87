"""Commands, as they are told apart."""

from llmgw.core.catalog import Profile
from llmgw.core.plan import DrainShard, Start, Stop, key_of


def test_a_command_is_known_by_shard_epoch_and_kind() -> None:
    start = Start("n1", "m/0/0", 7, "h", Profile(engine="x"), "m")
    assert key_of(start) == ("m/0/0", 7, "start")
    assert key_of(Stop("n1", "m/0/0", 7, 20.0, "why")) == ("m/0/0", 7, "stop")
    assert key_of(DrainShard("n1", "m/0/0", 7, 60.0)) == ("m/0/0", 7, "drain")
