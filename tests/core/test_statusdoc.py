"""The shape of the status."""

import msgspec

from llmgw.core.statusdoc import ControlStatus, ModelStatus, NodeStatus, Status

STATUS = Status(ControlStatus("0.1.0", "serving", 1.0, 1, 1), (NodeStatus("n1", "healthy"),), (), (ModelStatus("m"),))


def test_it_survives_json_with_its_fields_in_their_order() -> None:
    text = msgspec.json.encode(STATUS)
    assert msgspec.json.decode(text, type=Status) == STATUS
    assert list(msgspec.json.decode(text)["nodes"][0])[:4] == ["id", "state", "marks", "address"]


def test_an_older_reader_ignores_what_is_new_and_a_newer_one_has_defaults() -> None:
    text = b'{"control": {"version": "9", "state": "s", "uptime_s": 1, "known_nodes": 0, "synced_nodes": 0, "new": 1}}'
    assert msgspec.json.decode(text, type=Status) == Status(ControlStatus("9", "s", 1.0, 0, 0))
