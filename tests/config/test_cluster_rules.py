from collections.abc import Callable
from typing import TypeAlias

import pytest

from llmgw.errors import Mistake

Mistakes: TypeAlias = Callable[..., list[Mistake]]

SHA = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
OTHER_SHA = "3" * 64


def control(settings: str = "") -> str:
    return f'[control]\nlisten = "127.0.0.1:7070"\n{settings}\n'


def model(settings: str = "", profile: str = "", name: str = "a") -> str:
    return f"""[[models]]
name = "{name}"
{settings}
[models.profile]
engine = "vllm"
model = "m"
{profile}
"""


def static(settings: str = "", url: str = "http://127.0.0.1:9000", name: str = "s") -> str:
    return f'[[models]]\nname = "{name}"\n{settings}\nendpoints = [{{ url = "{url}" }}]\n'


def key(name: str = "team", sha256: str = SHA, settings: str = "") -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{sha256}"\n{settings}\n'


RIGHT = {
    "nothing": "",
    "static only": static(),
    "a profile": control() + model(),
    "a router of its own": '[router]\ncontrol = "head:7070"\n' + model(),
    "open to agents and said so": '[control]\nlisten = "0.0.0.0:7070"\ninsecure = true\n',
    "open to admins and said so": '[admin]\nlisten = "[::]:7071"\ninsecure = true\n',
    "the router is open": '[router]\nlisten = "0.0.0.0:8080"\n',
    "two free ports": '[control]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"\n',
    "longer lost_after with the default replace_after": control('lost_after = "10m"') + model(),
    "a short drain with the default grace": control() + model('drain_deadline = "5s"'),
    "names with slashes and dots": control() + model(name="meta-llama/Llama-3.1-8B"),
    "keys": control() + model() + key(settings='models = ["a"]') + key("other", OTHER_SHA),
    "a probe by URL": control() + model(profile='probe = "url:/up"'),
    "memory of a GPU": control() + model(profile='gpus = 1\ngpu_memory = "40GiB"'),
    "a URL with a folder and a slash": static(url="http://[::1]:9000/engine/"),
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(text: str, cluster_mistakes: Mistakes) -> None:
    assert cluster_mistakes(text) == []


WRONG = {
    "heartbeat of 0": (control('heartbeat = "0s"'), "control.heartbeat", "more than 0"),
    "heartbeat of an hour": (
        control('heartbeat = "5000s"\nlost_after = "10h"'),
        "control.heartbeat",
        'at most 60s, got "5000s"',
    ),
    "no time to start": (
        control() + model(profile='start_deadline = "20ms"'),
        "models[0].profile.start_deadline",
        'at least 1s, more than between two probes, got "0.02s"',
    ),
    "a percentage": (
        control() + model(profile='args = ["--gpu-memory-utilization", "90"]'),
        "models[0].profile.args[1]",
        'got "90" (did you mean 0.9?)',
    ),
    "lost_after of 0": (control('lost_after = "0s"'), "control.lost_after", "more than 0"),
    "connect_timeout of 0": ('[router]\nconnect_timeout = "0s"', "router.connect_timeout", "more than 0"),
    "body_max of 0": ('[router]\nbody_max = "0B"', "router.body_max", "more than 0"),
    "start_deadline of 0": (
        control() + model(profile='start_deadline = "0s"'),
        "models[0].profile.start_deadline",
        "more than 0",
    ),
    "no worker": ("[router]\nworkers = 0", "router.workers", "1 to 256"),
    "missed 0": (control("unreachable_after_missed = 0"), "control.unreachable_after_missed", "1 to 1000"),
    "replicas -1": (control() + model("replicas = -1"), "models[0].replicas", "0 to 10000"),
    "more ready than replicas": (control() + model("replicas = 2\nready_min = 3"), "models[0].ready_min", "0 to 2"),
    "gpus -1": (control() + model(profile="gpus = -1"), "models[0].profile.gpus", "0 to 64"),
    "a port too high": (control() + model(profile="port = 70000"), "models[0].profile.port", "1 to 65535"),
    "lost before unreachable": (
        control('lost_after = "7s"'),
        "control.lost_after",
        'more than heartbeat x 1.2 x unreachable_after_missed = 2s x 1.2 x 3 = 7.2s, got "7s"',
    ),
    "replaced before lost": (
        control() + model('replace_after = "60s"'),
        "models[0].replace_after",
        'at least [control] lost_after = 180s, got "60s"',
    ),
    "grace over drain": (
        control() + model('drain_deadline = "10s"', 'stop_grace = "30s"'),
        "models[0].profile.stop_grace",
        'at most drain_deadline = 10s, got "30s"',
    ),
    "connect after first byte": (
        '[router]\nconnect_timeout = "20s"\nfirst_byte_timeout = "10s"',
        "router.connect_timeout",
        'at most first_byte_timeout = 10s, got "20s"',
    ),
    "agent port in the open": (
        '[control]\nlisten = "0.0.0.0:7070"',
        "control.listen",
        'not encrypted, got "0.0.0.0:7070" (if this network is trusted, set [control] insecure = true)',
    ),
    "admin in the open": ('[admin]\nlisten = "10.0.0.5:7071"', "admin.listen", "[admin] insecure = true"),
    "one address twice": ('[admin]\nlisten = "127.0.0.1:8080"', "router.listen", "[admin] listen is the same"),
    "a profile and nobody to run it": (model(), "models[0].profile", "set [control] listen, as 127.0.0.1:7070"),
    "one name twice": (control() + model() + model(), "models[1].name", "it is models[0].name"),
    "an alias is a name": (
        control() + model('aliases = ["b"]') + model(name="b"),
        "models[1].name",
        "it is models[0].aliases",
    ),
    "an alias twice": (control() + model('aliases = ["x", "x"]'), "models[0].aliases[1]", "no other model has"),
    "an empty name": (control() + model(name=""), "models[0].name", "printable characters"),
    "a name with a blank": (control() + model(name="a "), "models[0].name", "without blanks around it"),
    "a name with an escape": (control() + model(name="a\\u001b"), "models[0].name", "printable characters"),
    "a name of 201": (control() + model(name="a" * 201), "models[0].name", "at most 200"),
    "a name with a slash at its end": (control() + model(name="a/"), "models[0].name", "slash"),
    "neither profile nor endpoints": ('[[models]]\nname = "a"', "models[0]", "[models.profile] (engine and model)"),
    "both": (
        control() + model('endpoints = [{ url = "http://a:1" }]'),
        "models[0].endpoints",
        "not both",
    ),
    "replicas of a stranger": (static("replicas = 2"), "models[0].replicas", "only a model with a [models.profile]"),
    "placement of a stranger": (static('placement = { gpu = "x" }'), "models[0].placement", "run by somebody else"),
    "an engine of no version": (
        control() + model().replace('"vllm"', '"vlm"'),
        "models[0].profile.engine",
        'an engine of this version: llamacpp, vllm, got "vlm" (did you mean "vllm"?)',
    ),
    "no model": (control() + model().replace('model = "m"', ""), "models[0].profile.model", "required"),
    "NUL in argv": (control() + model(profile='args = ["a\\u0000"]'), "models[0].profile.args[0]", "NUL"),
    "NUL in a variable": (control() + model(profile='env = { A = "\\u0000" }'), "models[0].profile.env.A", "NUL"),
    "a variable of no name": (
        control() + model(profile='env = { "A=B" = "" }'),
        "models[0].profile.env.A=B",
        "letters",
    ),
    "a relative secret": (
        control() + model(profile='env = { A = { file = "hf" } }'),
        "models[0].profile.env.A.file",
        "absolute path",
    ),
    "memory of no GPU": (
        control() + model(profile='gpu_memory = "1GiB"'),
        "models[0].profile.gpu_memory",
        "is per GPU, and gpus = 0",
    ),
    "no memory of a GPU": (
        control() + model(profile='gpus = 1\ngpu_memory = "0B"'),
        "models[0].profile.gpu_memory",
        "more than 0",
    ),
    "no probe": (control() + model(profile='probe = "chatt"'), "models[0].profile.probe", "chat, completion"),
    "nodes without a fabric": (
        control() + model(profile="nodes = 2"),
        "models[0].profile.nodes",
        "need placement.fabric",
    ),
    "https": (static(url="https://a:1"), "models[0].endpoints[0].url", "TLS are not in force"),
    "ftp": (static(url="ftp://a"), "models[0].endpoints[0].url", "http://HOST:PORT"),
    "no URL": (static(url="a:1"), "models[0].endpoints[0].url", "http://HOST:PORT"),
    "a bad port": (static(url="http://a:x"), "models[0].endpoints[0].url", "http://HOST:PORT"),
    "with /v1": (static(url="http://a:1/v1/"), "models[0].endpoints[0].url", "without /v1"),
    "a query": (static(url="http://a:1?x=1"), "models[0].endpoints[0].url", "without a query"),
    "a password": (static(url="http://u:hunter2@a:1"), "models[0].endpoints[0].url", "without a user or password"),
    "one URL twice": (
        '[[models]]\nname = "s"\nendpoints = [{ url = "http://a:1" }, { url = "http://a:1" }]',
        "models[0].endpoints[1].url",
        "listed once",
    ),
    "a key in the clear": (key(sha256="sk-hunter2"), "keys[0].sha256", "64 hex digits"),
    "a hash in capitals": (key(sha256=SHA.upper()), "keys[0].sha256", "lower case"),
    "one key's name twice": (key() + key(sha256=OTHER_SHA), "keys[1].name", "no other key has"),
    "one hash twice": (key() + key("b"), "keys[1].sha256", "no other key has"),
    "a key's unknown model": (
        key(settings='models = ["s", "ss"]') + static(),
        "keys[0].models[1]",
        'got "ss" (did you mean "s"?)',
    ),
    "a key's alias": (
        key(settings='models = ["x"]') + static('aliases = ["x"]'),
        "keys[0].models[0]",
        '"x" is an alias of "s": write that',
    ),
}


@pytest.mark.parametrize(("text", "path", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_at_its_path(text: str, path: str, says: str, cluster_mistakes: Mistakes) -> None:
    told = cluster_mistakes(text)
    assert says in "\n".join(str(mistake) for mistake in told if mistake.path == path), told
    assert "hunter2" not in "\n".join(map(str, told))


def test_a_consequence_is_not_told_beside_its_cause(cluster_mistakes: Mistakes) -> None:
    """A value that is wrong by itself is not compared, and neither is its default in its place."""
    told = cluster_mistakes(control('lost_after = "200"') + model('replace_after = "60s"', "gpus = true"))
    assert [mistake.path for mistake in told] == ["control.lost_after", "models[0].profile.gpus"]


def test_a_mistake_in_the_types_hides_no_rule(cluster_mistakes: Mistakes) -> None:
    told = cluster_mistakes(control("heartbeat = 3") + model(profile="gpus = -1") + key(sha256="x"))
    assert [mistake.path for mistake in told] == [
        "control.heartbeat",
        "models[0].profile.gpus",
        "keys[0].sha256",
    ]
