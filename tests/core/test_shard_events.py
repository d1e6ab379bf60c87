"""The two vocabularies of the supervision are closed: what is in them has a handler, and nothing else has."""

import typing

import attrs

from llmgw.core import shard_events
from llmgw.core.supervision import _HANDLERS


def test_every_event_has_a_handler() -> None:
    assert set(_HANDLERS) == set(typing.get_args(shard_events.Event))


def test_every_word_is_an_event_or_an_action() -> None:
    defined = {
        value
        for value in vars(shard_events).values()
        if isinstance(value, type) and attrs.has(value) and value.__module__ == shard_events.__name__
    }
    assert defined == set(typing.get_args(shard_events.Event)) | set(typing.get_args(shard_events.Action))
