"""The vocabulary of the fleet is whole: each event is handled, rows and messages have the fields they stand for."""

import typing

import attrs

from llmgw.core import fleet_events
from llmgw.core.fleet import HANDLERS
from llmgw.core.fleet_events import Event, KnownNode, Registration
from llmgw.core.nodes import Node
from llmgw.wire.messages import Register


def test_every_event_has_its_handler() -> None:
    assert set(HANDLERS) == set(typing.get_args(Event))


def test_events_and_effects_are_immutable_values() -> None:
    for kind in (*typing.get_args(Event), *typing.get_args(fleet_events.Effect)):
        assert attrs.has(kind)
        assert kind.__setattr__ is not object.__setattr__


def test_a_registration_is_what_the_message_says() -> None:
    message = {field.name for field in attrs.fields(Register)} - {"protocol"}
    assert {field.name for field in attrs.fields(Registration)} == message


def test_a_row_has_what_a_node_has() -> None:
    row = {field.name for field in attrs.fields(KnownNode)} - {"lost"}
    assert row <= {field.name for field in attrs.fields(Node)}
