import pytest

from llmgw.config.kind import kind_of
from llmgw.config.schema import ClusterConfig, NodeConfig


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('[control]\nlisten = "a:1"\n', ClusterConfig),
        ("[[models]]\n", ClusterConfig),
        ("[router]\n[admin]\n[labels]\n", ClusterConfig),
        ('control = "head:7070"\n[router]\n', NodeConfig),
        ('node_id = "a"\nstate_dir = "x"\n', NodeConfig),
        ("[[gpus]]\n", NodeConfig),
        ('state_dir = "x"\n[log]\nlevel = "debug"\n', None),
        ("", None),
        ("nonsense = 1", None),
        ("[router]\nlisten = 127.0.0.1\n", ClusterConfig),
        ("node_id = gpu-a\nmodels_dir = x\n", NodeConfig),
        ("router = 1\nlabels = 2\n", None),
        ("a = " + "[" * 5000 + "]" * 5000, None),
    ],
)
def test_a_file_is_told_by_what_is_in_it(text: str, kind: type | None) -> None:
    assert kind_of(text) is kind
