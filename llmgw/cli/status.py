"""`llmgw status`: what control knows, as tables that a person reads, each fact with its age.

Tables hold the facts; sentences (reasons, errors, explanations) stand below the table that they belong to,
because a sentence folded into a column of 20 letters is read by nobody.
"""

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llmgw.cli.text import BAD, GOOD, WAITING, age, ago, clean, count, plain, state
from llmgw.core.statusdoc import (
    ControlStatus,
    EndpointStatus,
    GpuStatus,
    ModelStatus,
    NodeStatus,
    ReplicaStatus,
    ShardStatus,
    Status,
)
from llmgw.core.units import format_bytes, format_seconds

OUTPUT_LINES_MAX = 4
"""Of a failed engine's last output: enough for the error message, and the status stays one page."""
WIDE_COLUMNS = 100
"""From this width on the columns appear that one looks at less often."""
FOLDED_COLUMNS = frozenset({"name", "labels", "GPUs", "shards", "aliases", "from", "address"})
"""What may stand in several lines where the terminal is narrow. Names, states and figures never do."""
SAID_BY_THE_FIGURE = frozenset({"exited", "signalled"})
"""Causes that the exit code or the signal beside them says already."""
UUID_LETTERS = 12
"""Of a GPU's UUID: `GPU-` and 8 hex digits tell the cards of a cluster apart."""


def print_status(console: Console, status: Status) -> None:
    """Print the whole status: control, nodes, their GPUs, models, replicas, routers."""
    wide = console.width >= WIDE_COLUMNS
    with console.capture() as capture:
        console.print(control_line(status.control))
        for title, part in (
            ("Nodes", nodes_part(status, wide=wide)),
            ("GPUs", gpus_part(status.nodes)),
            ("Models", models_part(status.models)),
            ("Replicas", replicas_part(status.models, wide=wide)),
            ("Routers", routers_part(status)),
        ):
            if part is not None:
                console.print()
                console.print(Text(title, style="bold"))
                console.print(Padding(part, (0, 0, 0, 2), expand=False))
    # Tables fill their columns with blanks, which get in the way of whoever copies or compares.
    for line in capture.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def control_line(control: ControlStatus) -> RenderableType:
    """`control  serving, up 3d04h, 2 of 2 known nodes synced (llmgw 0.1.0)`, and the reason."""
    nodes = f"{control.synced_nodes} of {count(control.known_nodes, 'known node')} synced"
    facts = f", up {format_seconds(control.uptime_s)}, {nodes} (llmgw {clean(control.version)})"
    line = Text.assemble(("Control  ", "bold"), state(control.state), facts)
    return Group(line, _hanging("  ", plain(control.reason))) if control.reason else line


def nodes_part(status: Status, *, wide: bool) -> RenderableType:
    """One line a node, then why those that are not healthy are not."""
    if not status.nodes and status.models and not any(model.desired for model in status.models):
        return Text("none: every model has its endpoints elsewhere")
    if not status.nodes:
        return Text("none yet: on a GPU node run `llmgw-agent --server ADDRESS`, with `[control] listen` as ADDRESS")
    table = _table("node", "state", "for", "heard", "address", "GPUs", *(("CPUs", "memory") if wide else ()), "labels")
    notes: list[tuple[str, Text]] = []
    for node in status.nodes:
        table.add_row(
            plain(node.id),
            Text(", ").join([state(node.state), *(plain(mark, WAITING) for mark in node.marks)]),
            "" if node.since_s is None else age(node.since_s),
            ago(node.last_heard_s),
            plain(node.address),
            str(len(node.gpus)),
            *(_host(node) if wide else ()),
            plain(" ".join(f"{name}={value}" for name, value in node.labels.items())),
        )
        notes += [(node.id, plain(node.reason))] if node.reason else []
        notes += [(node.id, plain(problem, BAD)) for problem in node.problems]
    return _with_notes(table, notes)


def gpus_part(nodes: tuple[NodeStatus, ...]) -> RenderableType | None:
    """One line a GPU: memory, the age of that figure, and what is booked on it."""
    if not any(node.gpus for node in nodes):
        return None
    table = _table("node", "GPU", "name", "memory used", "as of", "shards")
    notes: list[tuple[str, Text]] = []
    for node in nodes:
        for gpu in node.gpus:
            table.add_row(
                plain(node.id),
                plain(_short_uuid(gpu.uuid)),
                plain(gpu.name),
                _memory(gpu),
                ago(node.gpu_memory_age_s) if gpu.memory_used_bytes is not None else "",
                plain(", ".join(gpu.shards)) if gpu.shards else Text("free", style="dim"),
            )
            notes += [(f"{node.id} {gpu.uuid}", plain(problem, BAD)) for problem in gpu.problems]
    return _with_notes(table, notes)


def models_part(models: tuple[ModelStatus, ...]) -> RenderableType:
    """One line a model, then the explanations of those that lack replicas."""
    if not models:
        return Text("none: add [[models]] to cluster.toml")
    table = _table("model", "ready", "desired", "endpoints", "aliases")
    explanations: list[RenderableType] = []
    for model in models:
        usable = sum(endpoint.state == "ready" for endpoint in model.endpoints)
        table.add_row(
            plain(model.name),
            Text(str(model.ready), style=_ready_style(model)),
            str(model.desired),
            f"{usable} of {len(model.endpoints)} ready" if model.endpoints else "none",
            plain(", ".join(model.aliases)),
        )
        if model.explanation is not None:
            explanations.append(_explanation(model))
    return Group(table, *explanations)


def replicas_part(models: tuple[ModelStatus, ...], *, wide: bool) -> RenderableType | None:
    """One line a shard (a replica over several nodes has several), then reasons, errors and last output."""
    if not any(model.replicas or _outside(model) for model in models):
        return None
    table = _table("replica", "state", "for", "node", "GPUs", "port", "pid", *(("epoch",) if wide else ()))
    notes: list[tuple[str, Text]] = []
    for model in models:
        for replica in model.replicas:
            _add_replica(table, notes, replica, wide=wide)
        for endpoint in _outside(model):
            table.add_row(plain(endpoint.id), state(endpoint.state))
            notes += [(endpoint.id, plain(endpoint.reason))] if endpoint.reason else []
    return _with_notes(table, notes)


def routers_part(status: Status) -> RenderableType:
    """One line a router: how new its table is and when it said so."""
    if not status.routers:
        return Text("none follows this control: no client is served by its table")
    table = _table("router", "table", "heard", "in flight", "from", "version")
    for router in status.routers:
        newest = Text(f"{router.revision} (newest)") if router.current else Text(f"{router.revision}", style=WAITING)
        if not router.current:
            newest.append(f" of {status.control.routes_revision}")
        table.add_row(
            plain(router.id),
            newest,
            ago(router.last_heard_s),
            str(router.in_flight),
            plain(router.peer),
            plain(router.version),
        )
    return table


def _add_replica(table: Table, notes: list[tuple[str, Text]], replica: ReplicaStatus, *, wide: bool) -> None:
    if not replica.shards:
        table.add_row(plain(replica.id), state(replica.state))
    whole = len(replica.shards) == 1
    for shard in replica.shards:
        word = replica.state if whole else shard.state
        shown = state(word)
        if shard.gone:
            shown.append(", gone", style="dim")
        if replica.outdated:
            shown.append(", outdated", style=WAITING)
        table.add_row(
            plain(replica.id if whole else shard.id),
            shown,
            "" if shard.since_s is None else age(shard.since_s),
            plain(shard.node),
            _gpus(shard, wide=wide),
            "" if shard.port is None else str(shard.port),
            "" if shard.pid is None or shard.gone else str(shard.pid),
            *((str(shard.epoch),) if wide else ()),
        )
    if replica.reason:
        notes.append((replica.id, plain(replica.reason)))
    for shard in replica.shards:
        notes += _shard_notes(shard, said=replica.reason)


def _shard_notes(shard: ShardStatus, *, said: str) -> list[tuple[str, Text]]:
    facts = [
        "" if shard.cause in SAID_BY_THE_FIGURE else shard.cause,
        f"exit code {shard.exit_code}" if shard.exit_code is not None else "",
        f"signal {shard.signal}" if shard.signal is not None else "",
    ]
    error = "" if shard.error in said else shard.error
    new = ", ".join(fact for fact in facts if fact and fact not in said and fact not in error)
    text = f"{error} ({new})" if error and new else error or new
    notes = [(shard.id, plain(text, BAD))] if text else []
    lines = [line for line in shard.output.splitlines() if line.strip()]
    notes += [("", Text("| " + clean(line), style="dim")) for line in lines[-OUTPUT_LINES_MAX:]]
    return notes


def _explanation(model: ModelStatus) -> RenderableType:
    explanation = model.explanation
    assert explanation is not None
    parts: list[RenderableType] = [
        Text(""),
        Text.assemble((f"{clean(model.name)}: ", "bold"), clean(explanation.summary)),
    ]
    for reason in explanation.reasons:
        who = f"{', '.join(clean(node) for node in reason.nodes)}: " if reason.nodes else ""
        parts.append(_hanging("- ", Text.assemble(who, (clean(reason.rule), "bold"), f": {clean(reason.detail)}")))
    if explanation.change:
        parts.append(_hanging("> ", Text(clean(explanation.change), style=GOOD)))
    return Group(*parts)


def _outside(model: ModelStatus) -> tuple[EndpointStatus, ...]:
    """Endpoints that no replica of ours stands behind."""
    ours = {replica.id for replica in model.replicas}
    return tuple(endpoint for endpoint in model.endpoints if endpoint.id not in ours)


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", collapse_padding=True)
    for header in headers:
        table.add_column(header, overflow="fold", no_wrap=header not in FOLDED_COLUMNS)
    return table


def _with_notes(table: Table, notes: list[tuple[str, Text]]) -> RenderableType:
    return Group(
        table,
        *(_hanging("  ", Text.assemble((f"{clean(who)}: " if who else "", "bold"), note)) for who, note in notes),
    )


def _hanging(mark: str, text: Text) -> RenderableType:
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(mark, text)
    return grid


def _gpus(shard: ShardStatus, *, wide: bool) -> Text:
    if not shard.gpus:
        return Text("none", style="dim")
    return plain(", ".join(_short_uuid(uuid) for uuid in shard.gpus)) if wide else Text(str(len(shard.gpus)))


def _host(node: NodeStatus) -> tuple[str, str]:
    memory = format_bytes(node.memory_total_bytes) if node.memory_total_bytes else ""
    return (str(node.cpus) if node.cpus else "", memory)


def _memory(gpu: GpuStatus) -> str:
    total = format_bytes(gpu.memory_total_bytes) if gpu.memory_total_bytes else "?"
    return f"? of {total}" if gpu.memory_used_bytes is None else f"{format_bytes(gpu.memory_used_bytes)} of {total}"


def _short_uuid(uuid: str) -> str:
    return uuid[:UUID_LETTERS]


def _ready_style(model: ModelStatus) -> str:
    if model.ready >= model.desired:
        return GOOD
    return WAITING if model.ready else BAD
