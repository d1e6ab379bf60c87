"""What a new configuration would do to what runs under the old one.

`compare` gives data, which `llmgw config diff` shows and a reload acts by. The rules:

- A model is known by its name. One that is new starts, one that is gone stops.
- A profile whose spec hash has changed restarts its replicas, one after the other; nothing else of a model does.
- Fewer or more `replicas` stop or start the difference.
- Aliases, labels, timers of a model and client keys change in place. What is placed already stays where it is.
- Everything outside `[[models]]` and `[[keys]]` is read once, when the daemon starts.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import attrs

from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.show import Row, rows_of, text_of
from llmgw.core.catalog import Model, spec_hash
from llmgw.strict import Step, dotted

MODELS_STOPPED_MAX = 1
"""Models that a reload stops without being asked twice: 17 of 160 beginnings of a file are valid, with fewer models."""

READY_STOPPED_MAX = 0.2
"""Share of the ready replicas, likewise."""


class Effect(StrEnum):
    """What a change of a model does to its replicas."""

    STARTS = "starts"
    STOPS = "stops"
    RESTARTS = "restarts"
    SCALES = "scales"
    IN_PLACE = "in place"


@attrs.frozen
class SettingChange:
    """One setting with another value."""

    path: str
    """Dotted; within a model from there on: `profile.args`."""
    before: Any
    """As TOML has it, secrets hidden; None: not set."""
    after: Any
    remark: str = ""
    """What this one means beyond its group."""


@attrs.frozen
class ModelChange:
    """One model that is not as it was."""

    model: str
    effect: Effect
    before: int
    """Replicas of ours in the old file; 0 also where there was no such model."""
    after: int
    restarts: int = 0
    """Replicas that are launched anew."""
    remark: str = ""
    """Why, where no setting says it."""
    hint: str = ""
    """What to do instead, where the change may not be what was meant."""
    settings: tuple[SettingChange, ...] = ()


@attrs.frozen
class Changes:
    """Everything, in the order of the files."""

    models: tuple[ModelChange, ...] = ()
    keys: tuple[str, ...] = ()
    """Names of client keys that are new, gone or changed: in force at once."""
    daemon: tuple[SettingChange, ...] = ()
    """What needs a restart of the daemon that reads the file."""

    def __bool__(self) -> bool:
        return bool(self.models or self.keys or self.daemon)


def compare(old: ClusterConfig, new: ClusterConfig) -> Changes:
    """From one `cluster.toml` to another. Neither is judged: both have been loaded."""
    models = tuple(_model_changes(old, new))
    return Changes(models, tuple(_key_changes(old, new)), _setting_changes(_outside(old), _outside(new), _CLUSTER))


def compare_nodes(old: NodeConfig, new: NodeConfig) -> Changes:
    """From one `node.toml` to another: an agent reads it once, and its engines outlive its restart."""
    return Changes(daemon=_setting_changes(rows_of(old), rows_of(new), _NODE))


def reason_to_ask(changes: Changes, ready: Mapping[str, int]) -> str:
    """Why this must be confirmed before it is done; empty: it need not be. `ready`: model -> ready replicas now.

    What is launched anew does not count: that goes one by one, and stops where the first one fails.
    """
    stopped = [change.model for change in changes.models if change.before and not change.after]
    if len(stopped) > MODELS_STOPPED_MAX:
        return f"it stops {len(stopped)} models: {', '.join(stopped)}"
    lost = sum(max(0, ready.get(change.model, 0) - change.after) for change in changes.models if change.before)
    total = sum(ready.values())
    if total and lost > READY_STOPPED_MAX * total:
        return f"it stops {lost} of {total} ready replicas"
    return ""


def as_lines(changes: Changes, daemon: str) -> list[str]:
    """For a person; `daemon` is the name of the one that needs the restart: `llmgw-control`."""
    if not changes:
        return ["nothing changes"]
    lines = []
    for change in changes.models:
        lines.append(f"{change.effect.value:<9} {change.model}: {_told(change)}")
        lines += [f"    {change.hint}"] if change.hint else [_line(setting) for setting in change.settings]
    if changes.keys:
        lines.append(f"{Effect.IN_PLACE.value:<9} keys: {', '.join(changes.keys)}")
    if changes.daemon:
        lines.append(f"needs a restart of {daemon}:")
        lines += [_line(setting) for setting in changes.daemon]
    return lines


# --- models ---------------------------------------------------------------------------------------------------


def _model_changes(old: ClusterConfig, new: ClusterConfig) -> Iterator[ModelChange]:
    before = {model.name: model for model in old.models}
    after = {model.name: model for model in new.models}
    for name in dict.fromkeys((*before, *after)):
        change = _model_change(name, before.get(name), after.get(name))
        if change is not None:
            yield attrs.evolve(change, hint=_renamed(change, before, after))


def _model_change(name: str, old: Model | None, new: Model | None) -> ModelChange | None:
    if old == new:
        return None
    was, will = _replicas(old), _replicas(new)
    settings = () if old is None or new is None else _setting_changes(rows_of(old), rows_of(new), _MODEL)
    if old is None or new is None:
        remark = "a new model" if old is None else "no longer in the file"
        effect = Effect.STARTS if will else Effect.STOPS if was else Effect.IN_PLACE
        return ModelChange(name, effect, was, will, 0, remark)
    if old.profile is None or new.profile is None:
        if old.profile is new.profile:
            return ModelChange(name, Effect.IN_PLACE, 0, 0, settings=settings)
        remark = "its endpoints are run by somebody else" if new.profile is None else "run by llmgw from now on"
        effect = Effect.STARTS if will else Effect.STOPS if was else Effect.IN_PLACE
        return ModelChange(name, effect, was, will, 0, remark)
    if spec_hash(old.profile) != spec_hash(new.profile) and was and will:
        return ModelChange(name, Effect.RESTARTS, was, will, min(was, will), settings=settings)
    effect = Effect.IN_PLACE if was == will else Effect.SCALES
    return ModelChange(name, effect, was, will, settings=settings)


def _replicas(model: Model | None) -> int:
    return 0 if model is None or model.profile is None else model.replicas


def _renamed(change: ModelChange, before: Mapping[str, Model], after: Mapping[str, Model]) -> str:
    """A model under another name is another model, which surprises whoever only meant the name."""
    gone = before.get(change.model)
    if gone is None or gone.profile is None or change.model in after:
        return ""
    for name, model in after.items():
        if name not in before and model.profile is not None and spec_hash(model.profile) == spec_hash(gone.profile):
            return f'"{name}" has the same profile: to rename without a restart keep the name and add an alias'
    return ""


# --- the rest -------------------------------------------------------------------------------------------------

_MODEL = {
    "placement": "for what is placed from now on",
}
_CLUSTER = {
    "state_dir": "what control knows is in the old one",
    "router.control": "of a llmgw-router of its own",
    "router": "and of every llmgw-router",
}
_NODE = {
    "node_id": "it registers as another node",
    "state_dir": "engines that run are not found from another one",
    "address": "endpoints move to the new address",
    "ports": "engines that run keep theirs",
    "models_dir": "engines that run are not touched",
}
"""Path -> what to know about its change."""


def _setting_changes(
    old: tuple[Row, ...], new: tuple[Row, ...], remarks: Mapping[str, str]
) -> tuple[SettingChange, ...]:
    before = {row.path: row for row in old}
    after = {row.path: row for row in new}
    found = []
    for path in dict.fromkeys((*before, *after)):
        was, will = before.get(path), after.get(path)
        if _raw(was) != _raw(will):
            found.append(SettingChange(dotted(path), _shown(was), _shown(will), _remark(path, remarks)))
    return tuple(found)


def _remark(path: tuple[Step, ...], remarks: Mapping[str, str]) -> str:
    for length in range(len(path), 0, -1):
        if (remark := remarks.get(dotted(path[:length]))) is not None:
            return remark
    return ""


def _raw(row: Row | None) -> Any:
    return None if row is None or row.raw == {} else row.raw


def _shown(row: Row | None) -> Any:
    return None if row is None or row.value == {} else row.value


def _outside(config: ClusterConfig) -> tuple[Row, ...]:
    """Everything but models and keys."""
    return rows_of(attrs.evolve(config, models=(), keys=()))


def _key_changes(old: ClusterConfig, new: ClusterConfig) -> Iterator[str]:
    before = {key.name: key for key in old.keys}
    after = {key.name: key for key in new.keys}
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            word = "changed" if name in before and name in after else "new" if name in after else "gone"
            yield f"{name} ({word})"


# --- words ----------------------------------------------------------------------------------------------------


def _told(change: ModelChange) -> str:
    parts = []
    if change.effect is Effect.STARTS:
        parts.append(_count(change.after))
    elif change.effect is Effect.STOPS:
        parts.append(_count(change.before))
    elif change.effect is Effect.RESTARTS:
        parts.append(f"{_count(change.restarts)}, one after the other")
    if change.before != change.after and change.effect in (Effect.SCALES, Effect.RESTARTS):
        parts.append(f"from {change.before} to {_count(change.after)}")
    if change.remark:
        parts.append(change.remark)
    return "; ".join(parts) or "no replica is touched"


def _count(number: int) -> str:
    return f"{number} replica" if number == 1 else f"{number} replicas"


def _line(setting: SettingChange) -> str:
    remark = f" ({setting.remark})" if setting.remark else ""
    if setting.before == setting.after:
        return f"    {setting.path}: another value, which is not shown{remark}"
    before, after = ("not set" if value is None else text_of(value) for value in (setting.before, setting.after))
    return f"    {setting.path}: {before} -> {after}{remark}"
