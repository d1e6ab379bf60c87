"""Strict structuring: plain data (from msgpack, TOML or JSON) into attrs classes, without guessing.

cattrs alone calls the type on the value, so that 8.9 becomes 8, "false" becomes True and a str becomes a list of
its letters. The hooks here convert nothing, with one exception: an int is taken where a float is due. The rules:

- bool, int, str and bytes are taken only as exactly that; a bool is no int, an int is no bool;
- an int fits into 64 bits (signed or unsigned); a float is finite;
- a sequence is a list or a tuple, a mapping is a dict with str keys, and never a str;
- an enum is one of its values; a NewType is what it is based on, until a hook is registered for it;
- a union is decided by the plain type alone (`int | None`, `str | Secret`), never by trial.

Two callers: the wire stops at the first flaw (`detailed=False`); config wants every one (`detailed=True`).
Either way what is raised is `StructureError` and nothing else.
"""

import enum
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NewType, TypeAlias

import attrs
import cattrs

from llmgw.errors import InvariantBroken

INT_MIN = -(2**63)
INT_MAX = 2**64 - 1
"""What msgpack can carry, and every counter, size and identifier of ours fits."""

SEEN_CHARS_MAX = 60
"""Of a refused value, in a log line: enough to recognise it, too little to carry a secret or a page of text."""

Hook: TypeAlias = Callable[[Any, Any], Any]
Step: TypeAlias = str | int
"""One step of a path: the name of a field (or the key of a mapping), or the index in a list."""


class FlawKind(enum.Enum):
    """What is wrong."""

    WRONG = "wrong"
    """A value of the wrong type, or outside its range."""
    MISSING = "missing"
    """A required field is absent."""
    UNKNOWN = "unknown"
    """A field of that name does not exist; only with `forbid_extra_keys`."""


@attrs.frozen
class Flaw:
    """One thing that kept data from being structured."""

    kind: FlawKind
    path: tuple[Step, ...]
    """From the outside in."""
    expected: str
    """A phrase: `an integer`, `one of surge, stop-first`."""
    value: Any = None
    """What was seen; None where it is missing. It may be secret: show `seen(value)`, or nothing."""
    known: tuple[str, ...] = ()
    """The fields that do exist, where the kind is UNKNOWN."""

    def __str__(self) -> str:
        where = dotted(self.path) or "the whole"
        if self.kind is FlawKind.MISSING:
            return f"{where}: expected {self.expected}, and it is missing"
        return f"{where}: expected {self.expected}, got {seen(self.value)}"

    def under(self, step: Step) -> "Flaw":
        """The same flaw, seen from one level further out."""
        return attrs.evolve(self, path=(step, *self.path))


class StructureError(ValueError):
    """The data does not have the shape of the class. `flaws` holds at least one, outermost fields in order."""

    def __init__(self, *flaws: Flaw) -> None:
        super().__init__("; ".join(map(str, flaws)))
        self.flaws = flaws


def dotted(path: Sequence[Step]) -> str:
    """`models[0].profile.gpus`; a name that has a dot or a blank in it is quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        name = step if step and not any(c in step for c in ". []\"'\n") else repr(step)
        text += f".{name}" if text else name
    return text


def seen(value: Any) -> str:
    """A refused value as it may be shown: its type, and a short form of a number or of a short str.

    Containers are shown by their size, so that no nested secret gets into a log.
    """
    if value is None:
        return "nothing (null)"
    kind = type(value).__name__
    if isinstance(value, (bool, int, float)):
        text = repr(value) if not isinstance(value, int) or value.bit_length() <= 64 else "beyond 64 bits"  # noqa: PLR2004
        return f"{kind} {text}"
    if isinstance(value, str):
        text = ascii(value)
        return f"{kind} {text}" if len(text) <= SEEN_CHARS_MAX else f"{kind} of {len(value)} characters"
    if isinstance(value, (bytes, list, tuple, dict)):
        return f"{kind} of length {len(value)}"
    return kind


def make_converter(*, detailed: bool, forbid_extra_keys: bool = False) -> cattrs.Converter:
    """A converter whose `structure(data, cls)` is strict and raises `StructureError`.

    detailed: collect every flaw instead of stopping at the first. forbid_extra_keys: a field that the class lacks
    is a flaw instead of being ignored. A hook registered afterwards (for one class, enum or NewType) may raise
    ValueError: its text, a phrase of what was expected, becomes the flaw's.
    """
    converter = cattrs.Converter(detailed_validation=detailed, omit_if_default=True)
    for scalar, hook in _SCALARS.items():
        converter.register_structure_hook(scalar, hook)
    # A StrEnum is a str to functools.singledispatch, so each base that mixes a type in is named.
    for base in (enum.Enum, enum.StrEnum, enum.IntEnum):
        converter.register_structure_hook(base, _structure_enum)

    def attrs_class(cls: Any) -> Hook:
        return _class_hook(cls, converter, detailed=detailed, forbid_extra_keys=forbid_extra_keys)

    def newtype(cls: Any) -> Hook:
        base = cls.__supertype__
        hook = converter.get_structure_hook(base)
        return lambda value, _: hook(value, base)

    def union(cls: Any) -> Hook:
        return _union_hook(cls, converter)

    def sequence(cls: Any) -> Hook:
        return _sequence_hook(cls, converter, detailed=detailed)

    def mapping(cls: Any) -> Hook:
        return _mapping_hook(cls, converter, detailed=detailed)

    converter.register_structure_hook_factory(_is_mapping, mapping)
    converter.register_structure_hook_factory(_is_sequence, sequence)
    converter.register_structure_hook_factory(_is_union, union)
    converter.register_structure_hook_factory(lambda cls: isinstance(cls, NewType), newtype)
    converter.register_structure_hook_factory(lambda cls: isinstance(cls, type) and attrs.has(cls), attrs_class)
    return converter


# --- scalars --------------------------------------------------------------------------------------------------


def wrong(expected: str, value: Any) -> StructureError:
    """What a hook raises for a value that is not `expected`."""
    return StructureError(Flaw(FlawKind.WRONG, (), expected, value))


def _structure_bool(value: Any, _: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise wrong("true or false", value)


def _structure_int(value: Any, _: Any) -> int:
    if value.__class__ is int and INT_MIN <= value <= INT_MAX:
        return int(value)
    raise wrong("an integer of at most 64 bits", value)


def _structure_float(value: Any, _: Any) -> float:
    if value.__class__ is float:
        if math.isfinite(value):
            return float(value)
    elif value.__class__ is int and INT_MIN <= value <= INT_MAX:
        return float(value)
    raise wrong("a finite number", value)


def _structure_str(value: Any, _: Any) -> str:
    if value.__class__ is str:
        return str(value)
    raise wrong("a string", value)


def _structure_bytes(value: Any, _: Any) -> bytes:
    if value.__class__ is bytes:
        return bytes(value)
    raise wrong("bytes", value)


_SCALARS: dict[type, Hook] = {
    bool: _structure_bool,
    int: _structure_int,
    float: _structure_float,
    str: _structure_str,
    bytes: _structure_bytes,
}


def _structure_enum(value: Any, cls: Any) -> enum.Enum:
    members: Mapping[Any, enum.Enum] = cls._value2member_map_
    # A value of another type can equal a member's (True == 1), so the type is compared too.
    if value.__class__ in (str, int) and value in members and members[value].value.__class__ is value.__class__:
        return members[value]
    raise wrong(f"one of {', '.join(str(member.value) for member in cls)}", value)


# --- what holds others ----------------------------------------------------------------------------------------


def _is_sequence(cls: Any) -> bool:
    return cls in (list, tuple) or typing.get_origin(cls) in (list, tuple)


def _is_mapping(cls: Any) -> bool:
    return cls is dict or typing.get_origin(cls) is dict


def _is_union(cls: Any) -> bool:
    return typing.get_origin(cls) in (typing.Union, types.UnionType)


def _flaws_of(error: ValueError, value: Any) -> tuple[Flaw, ...]:
    if isinstance(error, StructureError):
        return error.flaws
    return (Flaw(FlawKind.WRONG, (), str(error), value),)


def _call(hook: Hook, value: Any, cls: Any, step: Step, flaws: list[Flaw], *, detailed: bool) -> Any:
    """hook(value), with what it raises put under `step`: into `flaws`, or raised at once."""
    try:
        return hook(value, cls)
    except ValueError as error:
        found = [flaw.under(step) for flaw in _flaws_of(error, value)]
        if not detailed:
            raise StructureError(*found) from None
        flaws.extend(found)
        return None


def _sequence_hook(cls: Any, converter: cattrs.Converter, *, detailed: bool) -> Hook:
    """For `list[T]`, `tuple[T, ...]` and `tuple[A, B]`."""
    build: Callable[[list[Any]], Any] = list if (typing.get_origin(cls) or cls) is list else tuple
    args = typing.get_args(cls)
    if not args:
        raise InvariantBroken(f"{cls} does not say what it holds")
    if build is tuple and args[-1] is not Ellipsis:
        return _fixed_tuple_hook(args, converter, detailed=detailed)
    item_cls = args[0]
    hook = converter.get_structure_hook(item_cls)
    plain = _plain_class(item_cls, converter, detailed=detailed)

    def structure(value: Any, _: Any) -> Any:
        if value.__class__ is not list and value.__class__ is not tuple:
            raise wrong("a list", value)
        try:
            return build([item if item.__class__ is plain else hook(item, item_cls) for item in value])
        except ValueError:
            # Which item it was is found out only now: the good case pays nothing for it.
            flaws: list[Flaw] = []
            for index, item in enumerate(value):
                _call(hook, item, item_cls, index, flaws, detailed=detailed)
            raise StructureError(*flaws) from None

    return structure


def _fixed_tuple_hook(args: tuple[Any, ...], converter: cattrs.Converter, *, detailed: bool) -> Hook:
    hooks = [(converter.get_structure_hook(arg), arg) for arg in args]

    def structure(value: Any, _: Any) -> Any:
        if (value.__class__ is not list and value.__class__ is not tuple) or len(value) != len(hooks):
            raise wrong(f"a list of {len(hooks)} items", value)
        flaws: list[Flaw] = []
        items = [
            _call(hook, item, arg, index, flaws, detailed=detailed)
            for index, (item, (hook, arg)) in enumerate(zip(value, hooks, strict=True))
        ]
        if flaws:
            raise StructureError(*flaws)
        return tuple(items)

    return structure


def _mapping_hook(cls: Any, converter: cattrs.Converter, *, detailed: bool) -> Hook:
    args = typing.get_args(cls)
    if len(args) != 2 or args[0] is not str:  # noqa: PLR2004
        raise InvariantBroken(f"{cls} is not dict[str, ...]")
    item_cls = args[1]
    hook = converter.get_structure_hook(item_cls)
    plain = _plain_class(item_cls, converter, detailed=detailed)

    def structure(value: Any, _: Any) -> dict[str, Any]:
        if value.__class__ is not dict:
            raise wrong("a table", value)
        flaws: list[Flaw] = []
        result = {}
        for key, item in value.items():
            if key.__class__ is not str:
                raise wrong("a string as key", key)
            try:
                result[key] = item if item.__class__ is plain else hook(item, item_cls)
            except ValueError as error:
                found = [flaw.under(key) for flaw in _flaws_of(error, item)]
                if not detailed:
                    raise StructureError(*found) from None
                flaws.extend(found)
        if flaws:
            raise StructureError(*flaws)
        return result

    return structure


def _union_hook(cls: Any, converter: cattrs.Converter) -> Hook:
    """Decided by the plain type: at most one member per plain type, else the class itself is at fault."""
    members = [arg for arg in typing.get_args(cls) if arg is not type(None)]
    optional = len(members) < len(typing.get_args(cls))
    hooks = [(converter.get_structure_hook(member), member) for member in members]
    if len(hooks) == 1:
        only, only_cls = hooks[0]
        return lambda value, _: None if value is None and optional else only(value, only_cls)
    by_plain_type: dict[type, tuple[Hook, Any]] = {}
    for hook, member in hooks:
        if not (plain_types := _plain_types(member)):
            raise InvariantBroken(f"{cls}: {member} cannot be told from the others in plain data")
        for plain in plain_types:
            if plain in by_plain_type:
                raise InvariantBroken(f"{cls}: two members look alike in plain data")
            by_plain_type[plain] = (hook, member)
    expected = " or ".join(_PLAIN_NAMES[plain] for plain in by_plain_type)

    def structure(value: Any, _: Any) -> Any:
        if value is None and optional:
            return None
        if (chosen := by_plain_type.get(value.__class__)) is None:
            raise wrong(expected, value)
        return chosen[0](value, chosen[1])

    return structure


_PLAIN_NAMES = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    float: "a number",
    list: "a list",
    dict: "a table",
    bytes: "bytes",
}


def _plain_types(cls: Any) -> tuple[type, ...]:
    """What a value of `cls` is in plain data; empty where only its hook knows."""
    if isinstance(cls, NewType):
        return _plain_types(cls.__supertype__)
    if _is_mapping(cls) or attrs.has(cls):
        return (dict,)
    if _is_sequence(cls):
        return (list,)
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return tuple(dict.fromkeys(type(member.value) for member in cls))
    return (typing.cast("type", cls),) if cls in _SCALARS else ()


def _class_hook(cls: Any, converter: cattrs.Converter, *, detailed: bool, forbid_extra_keys: bool) -> Hook:
    attrs.resolve_types(cls)
    fields = [field for field in attrs.fields(cls) if field.init]
    required = tuple(field.name for field in fields if field.default is attrs.NOTHING)
    hooks: dict[str, tuple[str, type | None, Hook, Any]] = {}
    for field in fields:
        field_hook = converter.get_structure_hook(field.type)
        plain_class = _plain_class(field.type, converter, detailed=detailed)
        hooks[field.name] = (field.alias or field.name, plain_class, field_hook, field.type)
    kinds = {field.name: _phrase(field.type) for field in fields}
    known = tuple(hooks)

    def structure(value: Any, _: Any) -> Any:
        if value.__class__ is not dict:
            raise wrong("a table", value)
        flaws: list[Flaw] = []
        arguments = {}
        for name, item in value.items():
            if (entry := hooks.get(name)) is None:
                if forbid_extra_keys:
                    flaws.append(Flaw(FlawKind.UNKNOWN, (name,), "a known name", item, known))
                continue
            alias, plain, hook, field_cls = entry
            if item.__class__ is plain:
                arguments[alias] = item
                continue
            try:
                arguments[alias] = hook(item, field_cls)
            except ValueError as error:
                flaws += [flaw.under(name) for flaw in _flaws_of(error, item)]
                if not detailed:
                    break
        for name in required:
            if name not in value:
                flaws.append(Flaw(FlawKind.MISSING, (name,), kinds[name]))
        if flaws:
            raise StructureError(*(flaws if detailed else flaws[:1]))
        try:
            return cls(**arguments)
        except (ValueError, TypeError) as error:  # a validator of the class
            raise StructureError(*_flaws_of(ValueError(str(error)), value)) from None

    return structure


def _plain_class(cls: Any, converter: cattrs.Converter, *, detailed: bool) -> type | None:
    """The plain type whose every value is right as it is, so that no hook need be called: half of the time.

    An int is such only without `detailed`: msgpack carries none beyond 64 bits, TOML does.
    """
    members = [arg for arg in typing.get_args(cls) if arg is not type(None)] if _is_union(cls) else [cls]
    if len(members) > 1:
        return None
    plain_classes: dict[Hook, type] = {_structure_str: str, _structure_bool: bool}
    if not detailed:
        plain_classes[_structure_int] = int
    return plain_classes.get(converter.get_structure_hook(members[0]))


def _phrase(cls: Any) -> str:
    """What a required field holds, for the message that it is missing."""
    for plain in _plain_types(cls) if not _is_union(cls) else ():
        return _PLAIN_NAMES[plain]
    return "a value"
