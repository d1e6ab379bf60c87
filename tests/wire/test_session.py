"""Session rules, with both sides joined by an imaginary wire; and field case A10 as far as it is sans-I/O."""

import itertools
from typing import Any

import msgpack
import pytest

from llmgw.core.backoff import CAP_SECONDS
from llmgw.core.catalog import Profile
from llmgw.errors import InvariantBroken, PeerError, PeerReason
from llmgw.wire.codec import UnknownMessage, encode, message_classes
from llmgw.wire.frames import DOWN_BYTES_MAX, FIRST_BYTES_MAX, UP_BYTES_MAX, FrameDecoder, frame
from llmgw.wire.messages import (
    PROTOCOL,
    Ack,
    Certificate,
    DrainShard,
    Follow,
    Goodbye,
    Heartbeat,
    LogChunk,
    Message,
    Ping,
    Refused,
    Register,
    Registered,
    RenewRequest,
    RouteChange,
    RouterReport,
    RouteTable,
    ShardStatus,
    StartShard,
    StatusAck,
    Unsupported,
)
from llmgw.wire.session import (
    DOWN_LIMITS,
    MOVES,
    OPENERS,
    REPLIES_MAX,
    RETRY_AFTER_SECONDS,
    TABLE,
    AgentSession,
    ControlSession,
    IncompatibleVersionError,
    Phase,
    RenewalSession,
    Role,
    RouterSession,
    Session,
)

REGISTER = Register(PROTOCOL, "n1", "i1")
REGISTERED = Registered("inc", 2.0)
FOLLOW = Follow(PROTOCOL, "r1")
TABLE_MESSAGE = RouteTable("inc", 1)
RENEW = RenewRequest("csr")
START = StartShard(1, "m/0/0", 5, "hash", Profile("llamacpp"), "m")


def raw(**fields: Any) -> bytes:
    return frame(msgpack.packb(fields))


def say(sender: Session, message: Message, receiver: Session) -> None:
    """One message over the imaginary wire, whole; it arrives as it was sent."""
    assert receiver.receive(sender.send(message)) == [message]


def open_agent() -> tuple[AgentSession, ControlSession]:
    agent, control = AgentSession(), ControlSession()
    say(agent, REGISTER, control)
    say(control, REGISTERED, agent)
    return agent, control


def open_router() -> tuple[RouterSession, ControlSession]:
    router, control = RouterSession(), ControlSession()
    say(router, FOLLOW, control)
    say(control, TABLE_MESSAGE, router)
    return router, control


def violation(session: Session, data: bytes) -> PeerError:
    with pytest.raises(PeerError) as caught:
        session.receive(data)
    return caught.value


def refusal(control: Session) -> Refused:
    """What control answers a violation with."""
    (answer,) = AgentSession().receive(control.replies())
    assert isinstance(answer, Refused)
    return answer


def test_an_agent_s_session() -> None:
    agent, control = AgentSession(), ControlSession()
    say(agent, REGISTER, control)
    assert (control.role, control.phase, agent.phase) == (Role.AGENT, Phase.ASKED, Phase.ASKED)
    say(control, REGISTERED, agent)
    assert (control.phase, agent.phase) == (Phase.OPEN, Phase.OPEN)
    say(agent, Heartbeat(1), control)
    say(control, START, agent)
    say(agent, Ack(1, accepted=True, port=20000), control)
    say(control, DrainShard(2, "m/0/0", 5), agent)
    say(control, StatusAck(3), agent)
    say(control, Ping(4.0), agent)
    say(agent, Ping(), control)
    say(agent, Goodbye("kept"), control)
    control.end_of_stream()


def test_a_router_s_session() -> None:
    router, control = RouterSession(), ControlSession()
    say(router, FOLLOW, control)
    say(router, RouterReport("inc", 0), control)
    say(control, TABLE_MESSAGE, router)
    assert (control.role, control.phase, router.phase) == (Role.ROUTER, Phase.OPEN, Phase.OPEN)
    say(control, RouteChange("inc", 2), router)
    say(router, RouterReport("inc", 2), control)
    say(router, Follow(PROTOCOL, "r1", incarnation_held="inc", revision_held=2), control)
    assert control.phase is Phase.OPEN
    say(control, RouteTable("inc", 3), router)
    say(router, Goodbye(), control)


def test_a_router_that_holds_a_table_may_get_a_change_first() -> None:
    router, control = RouterSession(), ControlSession()
    say(router, FOLLOW, control)
    say(control, RouteChange("inc", 2), router)
    assert (control.phase, router.phase) == (Phase.OPEN, Phase.OPEN)


def test_a_renewal_is_answered_by_a_certificate_and_nothing_else() -> None:
    renewal, control = RenewalSession(), ControlSession()
    say(renewal, RENEW, control)
    assert not control.may_send(Ping)
    say(control, Certificate("chain"), renewal)
    assert not renewal.may_send(RenewRequest)
    assert not renewal.may_send(Ping)
    assert violation(control, encode(Ping())).reason is PeerReason.OUT_OF_TURN


def test_a_renewal_is_answered_by_a_refusal() -> None:
    renewal, control = RenewalSession(), ControlSession()
    say(renewal, RENEW, control)
    say(control, Refused("no such token"), renewal)
    assert violation(renewal, encode(Certificate("chain"))).reason is PeerReason.OUT_OF_TURN


def test_a_certificate_is_renewed_on_an_open_stream() -> None:
    agent, control = open_agent()
    say(agent, RENEW, control)
    say(control, Certificate("chain"), agent)
    say(agent, Heartbeat(1), control)


def test_a_second_register_on_a_live_stream_is_legal() -> None:
    agent, control = open_agent()
    say(agent, Register(PROTOCOL, "n1", "i1", labels={"zone": "b"}), control)
    say(agent, Heartbeat(1), control)
    say(control, Registered("inc", 3.0), agent)
    assert (control.phase, agent.phase) == (Phase.OPEN, Phase.OPEN)


def test_a_second_register_before_the_first_is_answered_is_not() -> None:
    agent, control = AgentSession(), ControlSession()
    say(agent, REGISTER, control)
    assert not agent.may_send(Register)
    error = violation(control, encode(REGISTER))
    assert str(error) == ("a message that this session does not allow now: Register in the phase asked of agent")


def test_after_a_refusal_a_register_is_a_violation_and_what_was_under_way_is_dropped() -> None:
    agent, control = AgentSession(), ControlSession()
    say(agent, REGISTER, control)
    under_way = agent.send(Ping()) + raw(type="novelty") + agent.send(Goodbye())
    say(control, Refused("another n1 is registered from 10.0.0.5", 20), agent)
    assert (control.phase, agent.phase) == (Phase.REFUSED, Phase.REFUSED)
    assert not agent.may_send(Register)
    assert control.receive(under_way) == []
    assert violation(control, encode(REGISTER)).reason is PeerReason.OUT_OF_TURN
    assert control.replies() == b""


def test_after_a_refusal_of_an_open_session_everything_is_dropped() -> None:
    agent, control = open_agent()
    under_way = agent.send(Heartbeat(1)) + agent.send(REGISTER)
    say(control, Refused("forgotten by the operator"), agent)
    assert control.receive(under_way) == []
    assert not control.may_send(StartShard)
    assert violation(agent, encode(START)).reason is PeerReason.OUT_OF_TURN


def test_control_may_refuse_before_it_has_heard_anything() -> None:
    agent, control = AgentSession(), ControlSession()
    register = agent.send(REGISTER)
    say(control, Refused("too many connections"), agent)
    assert control.receive(register) == []
    assert not control.may_send(Refused)


def test_nothing_follows_a_goodbye_but_control_cannot_have_known() -> None:
    agent, control = open_agent()
    say(agent, Goodbye("stopped"), control)
    assert not agent.may_send(Heartbeat)
    with pytest.raises(InvariantBroken, match=r"Heartbeat is not sent in the phase open of agent, after Goodbye"):
        agent.send(Heartbeat(1))
    say(control, START, agent)
    error = violation(control, encode(Heartbeat(1)))
    assert str(error) == "a message that this session does not allow now: a message after Goodbye"


@pytest.mark.parametrize("cls", sorted(set(message_classes()) - {"Register", "Follow", "RenewRequest"}))
def test_a_session_opens_with_an_opener_and_nothing_else(cls: str) -> None:
    control = ControlSession()
    error = violation(control, raw(type=cls))
    assert error.reason is PeerReason.WRONG_FIRST_MESSAGE
    assert f"expected one of Register, Follow, RenewRequest, got {cls!r}" in str(error)
    assert refusal(control).reason == str(error)


def test_an_unknown_first_message_opens_nothing() -> None:
    control = ControlSession()
    assert violation(control, raw(type="Introduce\n")).detail.endswith("got 'Introduce\\n'")


LEGAL: dict[Role, dict[Phase, list[Message]]] = {
    Role.AGENT: {Phase.NEW: [], Phase.ASKED: [REGISTER], Phase.OPEN: [REGISTER, REGISTERED]},
    Role.ROUTER: {Phase.NEW: [], Phase.ASKED: [FOLLOW], Phase.OPEN: [FOLLOW, TABLE_MESSAGE]},
    Role.RENEWAL: {Phase.NEW: [], Phase.ASKED: [RENEW]},
}
"""What leads to a phase."""

DIALLERS: dict[Role, type[AgentSession | RouterSession | RenewalSession]] = {
    Role.AGENT: AgentSession,
    Role.ROUTER: RouterSession,
    Role.RENEWAL: RenewalSession,
}


def sessions_in(role: Role, phase: Phase) -> tuple[Session, Session]:
    """(dialling, control) of that role in that phase."""
    dialling, control = DIALLERS[role](), ControlSession()
    for message in LEGAL[role][phase]:
        up = type(message) in (Register, Follow, RenewRequest)
        say(dialling if up else control, message, control if up else dialling)
    return dialling, control


@pytest.mark.parametrize(
    ("role", "phase", "cls"),
    [
        (role, phase, cls)
        for role, phases in LEGAL.items()
        for phase in phases
        if phase is not Phase.NEW
        for cls in message_classes().values()
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_a_known_message_that_the_table_does_not_have_is_a_violation_on_both_sides(
    role: Role, phase: Phase, cls: type
) -> None:
    """Judged before its fields are: a map with nothing but its type is enough."""
    up, down = TABLE[role, phase]
    dialling, control = sessions_in(role, phase)
    assert dialling.may_send(cls) == (cls in up)
    assert control.may_send(cls) == (cls in down)
    if cls not in up:
        assert violation(control, raw(type=cls.__name__)).reason is PeerReason.OUT_OF_TURN
    if cls not in down:
        assert violation(dialling, raw(type=cls.__name__)).reason is PeerReason.OUT_OF_TURN


def test_the_table_is_whole() -> None:
    """Every role has every phase that its moves lead to, and every move is of a message that its row allows."""
    for (role, phase, kind), after in MOVES.items():
        assert kind in TABLE[role, phase][0] | TABLE[role, phase][1]
        assert (role, after) in TABLE
    for role, (phase, after) in itertools.product(Role, itertools.pairwise([Phase.NEW, Phase.ASKED])):
        assert after in {MOVES[role, phase, kind] for kind, opens in OPENERS.items() if opens is role}
    assert set(DOWN_LIMITS) <= set(TABLE)


def test_unknown_messages_are_answered_and_the_connection_lives() -> None:
    agent, control = open_agent()
    assert control.receive(raw(type="Novelty", x=1) + agent.send(Heartbeat(1))) == [
        UnknownMessage("Novelty"),
        Heartbeat(1),
    ]
    answer = control.replies()
    assert control.replies() == b""
    assert agent.receive(answer) == [Unsupported("Novelty")]
    assert agent.replies() == b""  # an Unsupported is never answered by another


def test_answers_to_unknown_messages_are_bounded() -> None:
    _, control = open_agent()
    assert len(control.receive(raw(type="x") * 1000)) == 1000
    assert len(FrameDecoder().feed(control.replies())) == REPLIES_MAX


def test_nothing_unknown_belongs_to_a_renewal() -> None:
    renewal, control = RenewalSession(), ControlSession()
    say(renewal, RENEW, control)
    assert violation(control, raw(type="Novelty")).detail == "'Novelty' in the phase asked of renewal"


def test_what_came_before_a_violation_is_given_first_then_it_is_raised_for_ever() -> None:
    agent, control = open_agent()
    data = agent.send(Heartbeat(1)) + agent.send(Heartbeat(2)) + raw(type="Heartbeat")
    assert control.receive(data) == [Heartbeat(1), Heartbeat(2)]
    first = violation(control, b"")
    assert first.reason is PeerReason.BAD_FIELD
    assert violation(control, agent.send(Heartbeat(3))) is first
    with pytest.raises(PeerError):
        control.end_of_stream()
    assert refusal(control) == Refused(str(first), RETRY_AFTER_SECONDS)
    assert control.replies() == b""


def test_any_chunking_gives_the_same_messages_and_the_same_violation() -> None:
    data = encode(REGISTER) + encode(Ping()) + raw(type="novelty") + b"\xff" * 20
    for size in (1, 2, 7, 50, len(data)):
        control = ControlSession()
        got: list[Any] = []
        reason = None
        try:
            for start in range(0, len(data), size):
                got += control.receive(data[start : start + size])
            control.receive(b"")
        except PeerError as error:
            reason = error.reason
        assert got == [REGISTER, Ping(), UnknownMessage("novelty")]
        assert reason is PeerReason.FRAME_TOO_LARGE


def test_the_side_that_dials_answers_no_violation() -> None:
    agent, _ = open_agent()
    violation(agent, b"\xff" * 4)
    assert agent.replies() == b""


def test_a_stream_that_ends_inside_a_frame_is_truncated() -> None:
    agent, control = open_agent()
    control.receive(agent.send(Heartbeat(1))[:-1])
    with pytest.raises(PeerError) as caught:
        control.end_of_stream()
    assert caught.value.reason is PeerReason.TRUNCATED


def announced(length: int) -> bytes:
    return length.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("session", "limit"),
    [
        (ControlSession, FIRST_BYTES_MAX),
        (lambda: sessions_in(Role.AGENT, Phase.ASKED)[1], FIRST_BYTES_MAX),
        (lambda: open_agent()[1], UP_BYTES_MAX),
        (lambda: sessions_in(Role.ROUTER, Phase.ASKED)[1], FIRST_BYTES_MAX),
        (lambda: open_router()[1], UP_BYTES_MAX),
        (AgentSession, FIRST_BYTES_MAX),
        (lambda: sessions_in(Role.AGENT, Phase.ASKED)[0], FIRST_BYTES_MAX),
        (lambda: open_agent()[0], DOWN_BYTES_MAX),
        (lambda: sessions_in(Role.ROUTER, Phase.ASKED)[0], DOWN_BYTES_MAX),
        (lambda: open_router()[0], DOWN_BYTES_MAX),
        (lambda: sessions_in(Role.RENEWAL, Phase.ASKED)[0], FIRST_BYTES_MAX),
    ],
)
def test_limits_are_lifted_when_the_session_is_accepted(session: Any, limit: int) -> None:
    assert session().receive(announced(limit)) == []
    assert violation(session(), announced(limit + 1)).reason is PeerReason.FRAME_TOO_LARGE


def test_what_the_receiver_would_not_take_is_not_sent() -> None:
    agent, _ = open_agent()
    assert agent.send(LogChunk(1, bytes(UP_BYTES_MAX - 100)))
    with pytest.raises(InvariantBroken, match=r"LogChunk has \d+ bytes; the receiver takes 1048576 now"):
        agent.send(LogChunk(1, bytes(UP_BYTES_MAX)))
    with pytest.raises(InvariantBroken):
        AgentSession().send(Register(PROTOCOL, "n" * FIRST_BYTES_MAX, "i"))


def test_what_is_not_legal_is_not_sent() -> None:
    with pytest.raises(InvariantBroken, match=r"Heartbeat is not sent in the phase new of agent"):
        AgentSession().send(Heartbeat(1))
    with pytest.raises(InvariantBroken, match=r"Ping is not sent in the phase new of a session"):
        ControlSession().send(Ping())


# --- A10: agent and control of different versions -------------------------------------------------------------
#
# Here: what goes over the wire and what is raised. That the shard of (b) is shown raw, is not routed to and costs one
# log line; that the agent of (c) keeps its shards; that the node of (d) is listed as incompatible and its agent comes
# back at the slowest pace; and that (e) ends one connection only, by a line that names the peer, is asserted with a
# real control and a real agent in their own tests.


def test_a10_a_extra_keys_are_ignored_at_every_level() -> None:
    """(a) Extra keys ignored, at top level and inside a GPU entry."""
    control = ControlSession()
    data = raw(
        type="Register",
        protocol=[1, 7],
        node="n1",
        instance="i1",
        mood="good",
        hardware={"gpus": [{"uuid": "GPU-a", "tensor_cores": 512}], "tpus": []},
    )
    (register,) = control.receive(data)
    assert isinstance(register, Register)
    assert register.hardware.gpus[0].uuid == "GPU-a"
    assert control.replies() == b""


def test_a10_b_an_unknown_state_is_kept_raw_and_the_connection_lives() -> None:
    """(b) Connection lives; the raw value is there to be shown, and is no state that anything is routed to."""
    agent, control = open_agent()
    data = raw(type="ShardStatus", number=1, report={"shard": "m/0/0", "epoch": 5, "state": "warming"})
    (status,) = control.receive(data)
    assert isinstance(status, ShardStatus)
    assert status.report.state == "warming"
    assert status.report.known_state is None
    say(agent, Heartbeat(1), control)


def test_a10_c_an_unknown_command_is_answered_unsupported() -> None:
    """(c) The agent answers 'unsupported command snapshot' and keeps the connection."""
    agent, control = open_agent()
    assert agent.receive(raw(type="snapshot", command_id=9, shard="m/0/0")) == [UnknownMessage("snapshot", 9)]
    assert control.receive(agent.replies()) == [Unsupported("snapshot", 9)]
    say(control, START, agent)


@pytest.mark.parametrize(
    ("protocol", "theirs"),
    [
        ({"protocol": [2, 0]}, "2.0"),
        ({"protocol": [0, 9]}, "0.9"),
        ({}, "no version that is known here (nothing (null))"),
        ({"protocol": "1.0"}, "no version that is known here (str '1.0')"),
        ({"protocol": [1]}, "no version that is known here (list of length 1)"),
        ({"protocol": [True, 0]}, "no version that is known here (list of length 2)"),
    ],
)
@pytest.mark.parametrize(("kind", "id_field", "role"), [("Register", "node", "agent"), ("Follow", "router", "router")])
def test_a10_d_another_major_version_is_refused_with_both_versions_on_both_sides(
    protocol: dict[str, Any], theirs: str, kind: str, id_field: str, role: str
) -> None:
    """(d) Refused with both versions named on both sides, whatever else has changed; the node's name is there to be
    listed as incompatible; it is sent away at the maximum backoff."""
    control = ControlSession()
    data = raw(type=kind, **{id_field: "n1"}, instance=["is", "a", "list", "now"], **protocol)
    with pytest.raises(IncompatibleVersionError) as caught:
        control.receive(data)
    error = caught.value
    assert error.reason is PeerReason.INCOMPATIBLE_VERSION
    assert (error.theirs, error.ours, error.role, error.who) == (theirs, "1.0", role, "n1")
    answer = refusal(control)
    assert answer.reason == (
        f"another major version of the protocol: {role} n1 speaks {theirs}, and this side speaks 1.0;"
        " upgrade the older one"
    )
    assert answer.retry_after_seconds == CAP_SECONDS
    assert answer.protocol == PROTOCOL


def test_a10_d_the_agent_s_side_names_both_versions_too() -> None:
    """(d) A control of another major may refuse in words that this agent does not know; its version it does."""
    agent = AgentSession()
    agent.send(REGISTER)
    with pytest.raises(IncompatibleVersionError) as caught:
        agent.receive(raw(type="Refused", because={"code": 7}, protocol=[2, 1]))
    assert (caught.value.theirs, caught.value.ours, caught.value.role) == ("2.1", "1.0", None)
    assert caught.value.detail == "control speaks 2.1, and this side speaks 1.0; upgrade the older one"


def test_a10_d_a_name_that_is_none_does_no_harm() -> None:
    for node in (["n1"], "n" * 10_000, None):
        with pytest.raises(IncompatibleVersionError) as caught:
            ControlSession().receive(raw(type="Register", node=node))
        assert len(caught.value.who) <= 64


def test_a10_d_another_minor_version_is_welcome() -> None:
    assert len(ControlSession().receive(raw(type="Register", protocol=[1, 99], node="n1", instance="i"))) == 1


@pytest.mark.parametrize(
    "body",
    [
        msgpack.packb({"type": "Register", "protocol": [1, 0], "node": "n1", "instance": "i", 7: "x"}),
        msgpack.packb({"type": "Register", "protocol": [1, 0], "node": "n1", b"instance": "i"}),
        msgpack.packb({"type": "Register", "protocol": [1, 0], "node": "n1", "instance": "i", "labels": {1: "x"}}),
    ],
    ids=["integer key", "key as bytes", "integer key below"],
)
def test_a10_e_keys_that_are_no_str_end_the_connection(body: bytes) -> None:
    """(e) A protocol error; that session only, since nothing is shared between sessions. The peer is told why."""
    control = ControlSession()
    error = violation(control, frame(body))
    assert error.reason is PeerReason.BAD_KEY
    assert refusal(control).reason == str(error)
    agent, other = open_agent()
    say(agent, Heartbeat(1), other)
