from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import settings_of, table_name


def paths(config: type) -> dict[str, str]:
    return {".".join(setting.path): table_name(setting.path) for setting in settings_of(config)}


def test_every_setting_is_listed_with_its_table() -> None:
    cluster = paths(ClusterConfig)
    assert cluster["state_dir"] == "the top level"
    assert cluster["control.listen"] == "[control]"
    assert cluster["models[].name"] == "[[models]]"
    assert cluster["models[].profile.gpus"] == "[models.profile]"
    assert cluster["models[].endpoints[].url"] == "[[models.endpoints]]"
    assert cluster["keys[].sha256"] == "[[keys]]"
    assert {"node_id", "gpu_filter.only", "fabrics[].hcas", "gpus[].memory", "log.level"} <= set(paths(NodeConfig))


def test_values_of_one_string_are_no_tables() -> None:
    """An address and a port range are classes inside, and one string in the file."""
    assert not {"control.listen.host", "ports.first"} & (set(paths(ClusterConfig)) | set(paths(NodeConfig)))


def test_no_name_ends_like_what_kubernetes_injects() -> None:
    """`..._PORT` is set by Kubernetes for every service."""
    names = {setting.key for config in (ClusterConfig, NodeConfig) for setting in settings_of(config)}
    assert not [name for name in names if name.endswith("_port")]


def test_notes_are_not_a_setting() -> None:
    """A setting of that name would take the operator's remarks for its value."""
    assert "notes" not in {setting.key for config in (ClusterConfig, NodeConfig) for setting in settings_of(config)}
