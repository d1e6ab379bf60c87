"""What the end-to-end tests share: models made once, and clusters that leave nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running

from llmgw.demo.tiny_model import Shape, write_tiny_model

SLOW_LAYERS = 256
"""About 45 tokens a second on one core: 3,000 tokens are a stream of a minute."""


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny.gguf`, which answers at once, and `slow.gguf`, whose streams last."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / "tiny.gguf", Shape())
    write_tiny_model(folder / "slow.gguf", Shape(layers=SLOW_LAYERS))
    return folder


@pytest.fixture
def make_cluster(tmp_path: Path, models_dir: Path) -> Iterator[Callable[..., Cluster]]:
    """A factory of clusters, ended with the test: each with the models given as TOML."""
    with ExitStack() as stack:

        def make(models: str, **settings: Any) -> Cluster:
            folder = tmp_path / f"cluster{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(running(Cluster(folder, models_dir, models=models, **settings)))

        yield make
