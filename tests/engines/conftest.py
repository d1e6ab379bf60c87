from collections.abc import Callable

import pytest

from llmgw.engines.base import Machine

MakeMachine = Callable[..., Machine]


@pytest.fixture
def make_machine() -> MakeMachine:
    """A node with a few programs, files and modules, and nothing else."""

    def make(
        *,
        programs: dict[str, str] | None = None,
        files: tuple[str, ...] = ("/srv/models/tiny.gguf",),
        modules: tuple[str, ...] = ("xllamacpp",),
        environ: dict[str, str] | None = None,
    ) -> Machine:
        return Machine(
            python="/opt/llmgw/bin/python",
            models_dir="/srv/models",
            environ={"PATH": "/usr/bin", "HOME": "/home/op"} if environ is None else environ,
            on_path=(programs or {}).get,
            is_file=files.__contains__,
            has_module=modules.__contains__,
        )

    return make
