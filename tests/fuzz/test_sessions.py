"""Whatever a peer sends to a session, in whatever order: messages or PeerError; and every reason is drawn."""

from collections.abc import Callable

import drawn
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from llmgw.errors import PeerError, PeerReason
from llmgw.wire.codec import Received, encode
from llmgw.wire.frames import FrameDecoder
from llmgw.wire.messages import PROTOCOL, Follow, Message, Register, Registered, RenewRequest, RouteTable
from llmgw.wire.session import TABLE, AgentSession, ControlSession, RenewalSession, RouterSession, Session

REGISTER, REGISTERED = Register(PROTOCOL, "n1", "i1"), Registered("inc", 2.0)
FOLLOW, TABLE_MESSAGE = Follow(PROTOCOL, "r1"), RouteTable("inc", 1)


def open_agent(session: Session) -> Session:
    """An agent's session or control's for one, open."""
    _say(session, REGISTER, REGISTERED)
    return session


def open_router(session: Session) -> Session:
    _say(session, FOLLOW, TABLE_MESSAGE)
    return session


def _say(session: Session, opener: Message, answer: Message) -> None:
    if isinstance(session, ControlSession):
        session.receive(encode(opener))
        session.send(answer)
    else:
        session.send(opener)
        session.receive(encode(answer))


def asked_renewal(session: Session) -> Session:
    session.send(RenewRequest("csr"))
    return session


SESSIONS: dict[str, Callable[[], Session]] = {
    "control": ControlSession,
    "control of an agent": lambda: open_agent(ControlSession()),
    "control of a router": lambda: open_router(ControlSession()),
    "agent": AgentSession,
    "open agent": lambda: open_agent(AgentSession()),
    "open router": lambda: open_router(RouterSession()),
    "renewal": lambda: asked_renewal(RenewalSession()),
}

ANY_SESSION = st.sampled_from(sorted(SESSIONS))


def run(session: Session, pieces: list[bytes]) -> tuple[list[Received], PeerReason | None]:
    """What a session makes of a stream to its end, and the invariants that hold at every step."""
    received: list[Received] = []
    try:
        for piece in pieces:
            received += session.receive(piece)
            assert session.role is None or (session.role, session.phase) in TABLE
        session.receive(b"")
    except PeerError as error:
        failure = error
    else:
        try:
            session.end_of_stream()
        except PeerError as error:
            return received, error.reason
        return received, None
    with pytest.raises(PeerError) as again:
        session.receive(b"more")
    assert again.value is failure
    replies = FrameDecoder().feed(session.replies())
    assert {fields["type"] for fields in replies} <= {"Refused", "Unsupported"}
    return received, failure.reason


@given(ANY_SESSION, st.data(), drawn.streams())
def test_any_bytes_in_any_chunks_give_messages_or_a_peer_error(name: str, data: st.DataObject, stream: bytes) -> None:
    """The same ones, however they are cut."""
    assert run(SESSIONS[name](), data.draw(drawn.chunks(stream))) == run(SESSIONS[name](), [stream])


ORDER = (None, PeerReason.OUT_OF_TURN, PeerReason.WRONG_FIRST_MESSAGE, PeerReason.INCOMPATIBLE_VERSION)
"""What valid frames can be guilty of."""


@given(ANY_SESSION, st.lists(st.tuples(st.booleans(), drawn.messages()), max_size=3))
def test_any_sequence_of_valid_frames_gives_messages_or_a_peer_error_whatever_we_say_in_between(
    name: str, steps: list[tuple[bool, Message]]
) -> None:
    """What comes out is what was sent, or nothing (dropped), or out of order; what `may_send` allows, `send` takes."""
    session = SESSIONS[name]()
    for ours, message in steps:
        if ours and session.may_send(type(message)):
            session.send(message)
        elif not ours:
            received, reason = receive(session, encode(message))
            assert [type(item) for item in received] in ([], [type(message)])
            assert reason in ORDER
            if reason is not None:
                break


def receive(session: Session, data: bytes) -> tuple[list[Received], PeerReason | None]:
    try:
        return session.receive(data), None
    except PeerError as error:
        return [], error.reason


@pytest.mark.parametrize("reason", [reason for reason in PeerReason if reason is not PeerReason.TIMEOUT])
def test_each_reason_is_drawn(reason: PeerReason) -> None:
    """The streams above lead to every violation that the wire can find (TIMEOUT is found by whoever has a clock)."""
    found = find(
        drawn.streams(),
        lambda stream: run(ControlSession(), [stream])[1] is reason,
        settings=settings(max_examples=20_000, derandomize=True, database=None, phases=[Phase.generate]),
    )
    assert run(ControlSession(), [found])[1] is reason
