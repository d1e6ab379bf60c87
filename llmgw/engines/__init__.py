"""The engines that llmgw can run. A new one is a module beside this file and one entry here."""

from llmgw.engines.base import Engine
from llmgw.engines.llamacpp import LlamaCpp

ENGINES: dict[str, Engine] = {
    "llamacpp": LlamaCpp(),
}
"""By the value of `profile.engine`."""
