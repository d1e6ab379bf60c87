"""The main job: a real engine, placed and started by control and agent, answering the official client."""

import hashlib
from collections.abc import Callable

import openai
import pytest
from cluster import Cluster, alive, wait_until

pytestmark = pytest.mark.e2e

TINY = """
[[models]]
name = "org/tiny"
aliases = ["gpt-4o-mini"]
  [models.profile]
  engine = "llamacpp"
  model = "tiny.gguf"
  args = ["--embeddings", "--pooling", "mean", "-t", "1"]
"""


def test_openai_client_streams_completes_embeds_and_lists(make_cluster: Callable[..., Cluster]) -> None:
    """Registered, placed, launched, ready; then each kind of answer, and the words for a model that is not there."""
    cluster = make_cluster(TINY)
    cluster.control()
    agent = cluster.agent("gpu-a")
    (shard,) = cluster.ready("org/tiny")
    assert shard["node"] == "gpu-a"
    assert alive(shard["pid"])
    client = cluster.client()

    chunks = list(
        client.chat.completions.create(
            model="org/tiny",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip()
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20

    completion = client.completions.create(model="gpt-4o-mini", prompt="Hello", max_tokens=8)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8

    vector = client.embeddings.create(model="org/tiny", input="Hello").data[0].embedding
    assert len(vector) == 64
    assert any(vector)

    assert [model.id for model in client.models.list()] == ["org/tiny"]
    assert client.models.retrieve("org/tiny").id == "org/tiny"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "Hello"}])
    assert missing.value.code == "model_not_found"
    assert len(agent.events("command received")) == 1


def test_same_text_as_the_engine_itself(make_cluster: Callable[..., Cluster]) -> None:
    """What the engine says is what the client gets, through router and all."""
    cluster = make_cluster(TINY)
    cluster.control()
    cluster.agent("gpu-a")
    (shard,) = cluster.ready("org/tiny")

    def ask(port: int) -> str:
        answer = cluster.client(port).chat.completions.create(
            model="org/tiny",
            messages=[{"role": "user", "content": "Tell me"}],
            temperature=0,
            seed=1,
            max_tokens=24,
        )
        return answer.choices[0].message.content or ""

    assert ask(cluster.router_port) == ask(shard["port"]) != ""


def test_keys_are_enforced(make_cluster: Callable[..., Cluster]) -> None:
    """401 without a right key, 404 for a model outside the key's list, an answer else."""
    digest = hashlib.sha256(b"sesame").hexdigest()
    other = hashlib.sha256(b"elsewhere").hexdigest()
    keys = f"""
[[keys]]
name = "team-a"
sha256 = "{digest}"
models = ["org/tiny"]
[[keys]]
name = "team-b"
sha256 = "{other}"
models = ["legacy"]
[[models]]
name = "legacy"
endpoints = [{{ url = "http://127.0.0.1:9" }}]
"""
    cluster = make_cluster(TINY, top=keys)
    cluster.control()
    cluster.agent("gpu-a")
    cluster.ready("org/tiny")

    def ask(key: str) -> None:
        cluster.client(key=key).completions.create(model="org/tiny", prompt="Hello", max_tokens=2)

    with pytest.raises(openai.AuthenticationError):
        ask("wrong")
    with pytest.raises(openai.NotFoundError):
        ask("elsewhere")
    ask("sesame")
    assert [model.id for model in cluster.client(key="elsewhere").models.list()] == ["legacy"]


def test_unavailable_says_why(make_cluster: Callable[..., Cluster]) -> None:
    """Without a node the router answers 503 with Retry-After and the reason; the status explains the same."""
    cluster = make_cluster(TINY)
    cluster.control()
    wait_until("an explanation", 50, lambda: cluster.model("org/tiny").get("explanation"))
    with pytest.raises(openai.InternalServerError) as refused:
        cluster.client().completions.create(model="org/tiny", prompt="Hello", max_tokens=2)
    assert refused.value.status_code == 503
    assert refused.value.code == "server_is_overloaded"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert "no node" in str(refused.value).lower()
