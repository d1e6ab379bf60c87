from pathlib import Path

import attrs

from llmgw.config.schema import Admin, ClusterConfig, Control, NodeConfig, Router
from llmgw.core.address import Address, is_loopback
from llmgw.core.catalog import Model


def test_the_catalog_has_the_models_in_the_order_of_the_file() -> None:
    models = (Model("z"), Model("a"))
    assert list(ClusterConfig(Path("/x"), models=models).catalog.models.items()) == [("z", models[0]), ("a", models[1])]


def test_the_defaults_listen_only_on_loopback_and_not_for_agents() -> None:
    assert Control().listen is None
    assert is_loopback(Admin().listen.host)
    assert is_loopback(Router().listen.host)


def test_the_default_timers() -> None:
    """As documented in conf/cluster.toml; a default never changes."""
    control, router = Control(), Router()
    assert (control.heartbeat, control.unreachable_after_missed) == (2.0, 3)
    assert (control.lost_after, control.recover_for) == (180.0, 300.0)
    assert (router.connect_timeout, router.first_byte_timeout, router.idle_timeout) == (3.0, 900.0, 300.0)
    assert router.body_max == 64 * 1024**2


def test_a_node_must_know_whom_to_dial() -> None:
    required = {field.name for field in attrs.fields(NodeConfig) if field.default is attrs.NOTHING}
    assert required == {"node_id", "control", "state_dir", "models_dir"}
    node = NodeConfig("a", Address("head", 7070), Path("/s"), Path("/m"))
    assert not node.stop_engines_on_exit
