"""Whatever a peer sends to a session, in whatever order: messages or PeerError; and every reason is drawn."""

from collections.abc import Callable

import drawn
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from llmgw.errors import PeerError, PeerReason
from llmgw.wire.codec import Received, encode, message_classes
from llmgw.wire.frames import FrameDecoder
from llmgw.wire.messages import PROTOCOL, Follow, Message, Refused, Register, Registered, RenewRequest, RouteTable
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
        session.end_of_stream()
    except PeerError as error:
        with pytest.raises(PeerError) as again:
            session.receive(b"more")
        assert again.value is error or error.reason is PeerReason.TRUNCATED
        for fields in FrameDecoder().feed(session.replies()):
            assert fields["type"] in ("Refused", "Unsupported")
        return received, error.reason
    return received, None


@given(ANY_SESSION, drawn.streams())
def test_any_bytes_give_messages_or_a_peer_error(name: str, stream: bytes) -> None:
    run(SESSIONS[name](), [stream])


@given(ANY_SESSION, st.data(), drawn.streams())
def test_any_chunking_gives_the_same(name: str, data: st.DataObject, stream: bytes) -> None:
    assert run(SESSIONS[name](), data.draw(drawn.chunks(stream))) == run(SESSIONS[name](), [stream])


@given(ANY_SESSION, st.lists(drawn.messages(), max_size=5))
def test_any_sequence_of_valid_frames_gives_messages_or_a_peer_error(name: str, messages: list[Message]) -> None:
    """Those before the first that is out of turn are given, each as what it is."""
    received, reason = run(SESSIONS[name](), [b"".join(map(encode, messages))])
    assert [type(message) for message in received] == [type(message) for message in messages[: len(received)]]
    assert reason in (None, PeerReason.OUT_OF_TURN, PeerReason.WRONG_FIRST_MESSAGE, PeerReason.INCOMPATIBLE_VERSION)


@given(ANY_SESSION, st.lists(st.tuples(st.booleans(), drawn.messages()), max_size=6))
def test_what_may_be_sent_can_be_sent_whatever_was_received(name: str, steps: list[tuple[bool, Message]]) -> None:
    """`may_send` and `send` agree at every point, so that a sender that asks first never breaks an invariant."""
    session = SESSIONS[name]()
    for ours, message in steps:
        if ours and session.may_send(type(message)):
            session.send(message)
        elif not ours:
            try:
                session.receive(encode(message))
            except PeerError:
                break
    for kind in message_classes().values():
        if isinstance(session, ControlSession) and session.role is None:
            assert not session.may_send(kind) or kind is Refused


@pytest.mark.parametrize("reason", [reason for reason in PeerReason if reason is not PeerReason.TIMEOUT])
def test_each_reason_is_drawn(reason: PeerReason) -> None:
    """The streams above lead to every violation that the wire can find (TIMEOUT is found by whoever has a clock)."""
    found = find(
        drawn.streams(),
        lambda stream: run(ControlSession(), [stream])[1] is reason,
        settings=settings(max_examples=20_000, derandomize=True, database=None, phases=[Phase.generate]),
    )
    assert run(ControlSession(), [found])[1] is reason
