"""The annotated files: every setting with what it means and its default, and a few of them set.

The text is here, once. `conf/` holds it with the values of the demo, `llmgw-control init` and `llmgw-agent init` write
it with what they find on a machine. A line `#key = value` is a default; `# key = value` an example.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmgw.config.show import text_of
from llmgw.errors import InvariantBroken

Values = Mapping[str, Any]
"""Dotted path -> value as TOML has it: `{"control.listen": "127.0.0.1:7070"}`; `models.name` in a model."""

Remarks = Mapping[str, Sequence[str]]
"""Dotted path -> lines to be said above that setting."""

_SETTING = re.compile(r"(?:# ?)?([a-z0-9_]+) = ")
_TABLE = re.compile(r"#?\[+([a-z0-9_.]+)\]+$")


def cluster_text(
    title: str, values: Values, models: Sequence[Values], remarks: Remarks, more: Sequence[Values] = ()
) -> str:
    """A `cluster.toml`. models: in force, each annotated; without any the annotated one is an example.

    more: further models, commented out. remarks: of the settings in `values` and `models` or of any other.
    """
    parts = [title + _RULES.format(command="llmgw-control", variable="LLMGW_CONTROL__LISTEN for [control] listen")]
    parts += [_filled(_CLUSTER, values, remarks), _KEYS]
    parts += [_filled(_MODEL, model, remarks) for model in models] or [_commented(_MODEL)]
    if more:
        parts.append("# More models that were found: take the # away from what is to be served.\n" + _listed(more))
    return "\n".join([*parts, _STATIC])


def node_text(title: str, values: Values, fabrics: Sequence[Values], remarks: Remarks) -> str:
    """A `node.toml`. fabrics: `{"fabrics.name": ..., "fabrics.hcas": [...]}`, in force; without any an example."""
    rules = _RULES.format(command="llmgw-agent", variable="LLMGW_NODE_ID for node_id")
    parts = [title + rules, _filled(_NODE, values, remarks)]
    parts += [_filled(_FABRIC, fabric, remarks) for fabric in fabrics] or [_commented(_FABRIC)]
    return "\n".join([*parts, _GPUS])


def _filled(text: str, values: Values, remarks: Remarks) -> str:
    """`text` with these settings set. InvariantBroken where it has no such setting."""
    left = dict(values)
    table = ""
    lines: list[str] = []
    for line in text.splitlines():
        if header := _TABLE.match(line):
            table = header[1] + "."
        setting = _SETTING.match(line)
        path = table + setting[1] if setting else ""
        if setting:
            lines += [f"# {_printable(remark)}" for remark in remarks.get(path, ())]
        lines.append(f"{setting[1]} = {text_of(left.pop(path))}" if setting and path in left else line)
    if left:
        raise InvariantBroken(f"no annotated setting {sorted(left)}")
    return "\n".join(lines) + "\n"


def _printable(remark: str) -> str:
    """TOML has no control characters in comments, and a remark may hold what a driver or a file is called."""
    return "".join(letter if letter.isprintable() else "?" for letter in remark)


def _commented(text: str) -> str:
    return "".join(
        line if line.startswith("#") or line == "\n" else f"#{line}" for line in text.splitlines(keepends=True)
    )


def _listed(models: Sequence[Values]) -> str:
    """Each as few lines as it takes, all of them commented out."""
    lines = []
    for model in models:
        table = ""
        for path, value in model.items():
            above, _, key = path.rpartition(".")
            if above != table:
                lines.append(f"#[[{above}]]" if above == "models" else f"#[{above}]")
                table = above
            lines.append(f"#{key} = {text_of(value)}")
        lines.append("")
    return "\n".join(lines)


_RULES = """\
#
# A line that begins with # and no blank after it is a setting with its default: take the # away to change it.
# Durations and sizes carry a unit: "500ms", "5s", "20m", "2h", "1d"; "512MiB", "40GiB". Relative paths are relative
# to the folder of this file (of the link, if it is one); ~ and $HOME are not expanded.
# A variable of the environment beats the file: {variable}. There a bool is one of
# true, yes, on, 1, false, no, off, 0; a list is a,b; and an empty variable is a mistake, not an empty value.
# Your own remarks can be comments, or a key `notes` in any table.
# `{command} --check FILE` lists every mistake and starts nothing; `llmgw config show FILE` lists every value
# that is in force, and where it comes from.
"""

_CLUSTER = """\
# Known nodes, assignments and what the router last knew. Default: /var/lib/llmgw/control as root, else
# ~/.local/state/llmgw/control.
#state_dir = "/var/lib/llmgw/control"

[control]
# Agents and routers dial this. Without it there are no agents, and the router serves only what has `endpoints`.
# Whoever reaches this port can start processes, so any address but loopback needs `insecure = true`.
# listen = "127.0.0.1:7070"
#insecure = false
# The least interval between two heartbeats of an agent; with many nodes control asks for less.
#heartbeat = "2s"
# So many missed heartbeats make a node `unreachable`: nothing new is placed on it.
#unreachable_after_missed = 3
# So long a silence makes it `lost`: its replicas may be started elsewhere.
#lost_after = "180s"
# After a start nothing is stopped or given up until the known nodes are back, or this time is over.
#recover_for = "300s"

[admin]
# `llmgw status`, /metrics and /healthz. Any address but loopback needs `insecure = true`.
#listen = "127.0.0.1:7071"
#insecure = false

[router]
# The OpenAI-compatible address.
#listen = "127.0.0.1:8080"
# Whom a llmgw-router of its own follows. The router that control starts does not read this.
# control = "127.0.0.1:7070"
# Processes that share the address.
#workers = 1
# How long an engine may take to accept a connection, to send its first byte, and to be silent after that.
#connect_timeout = "3s"
#first_byte_timeout = "15m"
#idle_timeout = "5m"
# The largest request.
#body_max = "64MiB"

[log]
# debug, info, warning or error.
#level = "info"
# human, json, or auto: human on a terminal, JSON otherwise.
#format = "auto"
"""

_KEYS = """\
# Who may ask. Without any [[keys]] no key is needed. Only the hash is kept: printf %s KEY | sha256sum
#[[keys]]
#name = "team-a"
#sha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
# The models it may use; empty: all.
#models = ["tiny"]
"""

_MODEL = """\
[[models]]
# What a client names, and other names for the same.
name = "NAME"
#aliases = []
#replicas = 1
# How long a node must be silent before its replicas are started elsewhere, or "never". Not before `lost_after`.
#replace_after = "180s"
# How long requests in flight may go on when a replica is to go.
#drain_deadline = "60s"
# How a changed profile is rolled out: "surge" (the new replica first), or "stop-first" where there is no room for both.
#update = "surge"

# How one replica is run. A change here means a new launch; nothing else of a model does.
[models.profile]
engine = "ENGINE"
# A path or a name on the node: absolute, or under the `models_dir` of its node.toml.
model = "MODEL"
# Passed to the engine element by element, after everything that llmgw says.
#args = []
# Variables of the engine: a text, or a file on the node: HF_TOKEN = { file = "/etc/llmgw/hf" }.
#env = {}
# GPUs of a replica. 0: it runs on the CPU.
#gpus = 0
# Of each GPU; left out, the replica has its GPUs for itself.
# gpu_memory = "40GiB"
# Host memory that the node must have for it.
#memory = "0B"
# What a ready engine must answer: "chat", "completion", "embedding", "rerank" or "url:/path".
#probe = "chat"
# Whether the port must belong to the engine's own processes.
#listener_check = true
# How long it may take to be ready, and to stop before it is killed.
#start_deadline = "20m"
#stop_grace = "20s"

# Where it may run.
[models.placement]
# Labels that its node must have.
#labels = {}
# Part of the name of its GPUs, as "H100".
#gpu = ""
# Which node is taken of those that fit: the fullest ("pack") or the emptiest ("spread").
#strategy = "pack"
"""

_STATIC = """\
# An engine that somebody else runs: it is routed to, never started or stopped.
#[[models]]
#name = "legacy"
#endpoints = [{ url = "http://127.0.0.1:9000", model = "name-over-there", key_file = "legacy.key" }]
"""

_NODE = """\
# This node's name in the cluster. Default: the name of the host.
#node_id = "HOST"

# The [control] listen of cluster.toml, as this machine reaches it. The agent dials out; nothing dials in but requests
# to the engines. Without a file: llmgw-agent --server HOST:PORT.
control = "HOST:PORT"

# What outlives the agent: its identity, and a folder for each engine that runs. Default: /var/lib/llmgw/NODE as root,
# else ~/.local/state/llmgw/NODE.
#state_dir = "/var/lib/llmgw/NODE"

# Where model files are. A relative `model` of a profile is under it.
#models_dir = "/var/lib/llmgw/models"

# The host under which control and routers reach this node's engines. Empty: the local address of the connection to
# control.
#address = ""

# The ports that engines get.
#ports = "20000-20999"

# Whether a stop of the agent stops its engines too. They serve on otherwise, and are found again at its next start.
#stop_engines_on_exit = false

# What [models.placement] labels can ask for, as { zone = "a" }.
#labels = {}

[log]
# debug, info, warning or error.
#level = "info"
# human, json, or auto: human on a terminal, JSON otherwise.
#format = "auto"

# Which GPUs are used, by UUID (nvidia-smi -L). Empty: all.
[gpu_filter]
#only = []
#exclude = []
"""

_FABRIC = """\
# RDMA networks, and this node's adapters on each (ls /sys/class/infiniband).
[[fabrics]]
name = "ib0"
hcas = ["mlx5_0", "mlx5_1"]
"""

_GPUS = """\
# GPUs, only where there is no NVML to ask.
#[[gpus]]
#uuid = "GPU-fake-0"
#name = "H100"
#memory = "80GiB"
"""
