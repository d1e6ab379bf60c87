"""llmgw: an LLM gateway and control plane for self-hosted inference."""

__version__ = "0.1.0"
