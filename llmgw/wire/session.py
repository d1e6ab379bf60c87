"""Who may say what, and when: one connection between control (which accepts) and an agent, a router or a renewal
(which dials). Sans-I/O: bytes in, messages out; no clock, no socket. Waiting, keepalive and logging are the caller's.

Theory of operation. There is one machine with two half-duplex columns, and each side runs its own copy of it:

1. All legal messages are rows of `TABLE`: for a role and a phase, what may go up (to control) and what down.
   All changes of phase are rows of `MOVES`. Nothing else in this file knows a message's meaning.
2. The first message up opens the session and says the role: Register (an agent), Follow (a router) or RenewRequest (a
   certificate). Its answer down opens or refuses it. A second Register on an open stream is legal (the hardware
   changed), so is a second Follow (the router lacks a revision); neither changes the phase.
3. The version is judged on the plain map, before its fields are: another major may have changed every field. The
   opener, Registered and Refused carry it.
4. The two sides are never in one phase at once: while an answer is under way its receiver still says what its own
   phase allows. So control drops what arrives after its Refused, if the phase before allowed it; an opener then is a
   violation. What control sends after a Goodbye is legal too: it cannot have known.
5. A message of an unknown kind is answered Unsupported, and handed out as `UnknownMessage` for a line in the log.
   Unsupported is a known message, so nobody answers it. A known message of the wrong side or phase is a violation.
6. A violation is a `PeerError`: the messages before it are handed out first, then it is raised, once and for ever.
   Control answers it with a Refused (in `replies()`), so that the other side can say why it was dropped; the side that
   dials answers nothing.

What we say against these rules ourselves is `InvariantBroken`.

The one thing not pretty: Refused as the answer to a RenewRequest on an open agent stream ends the stream too.
"""

import enum
import typing
from collections.abc import Sequence
from typing import Any, TypeGuard

from llmgw.core.backoff import CAP_SECONDS
from llmgw.errors import InvariantBroken, PeerError, PeerReason
from llmgw.strict import seen
from llmgw.wire.codec import NAME_CHARS_MAX, Received, UnknownMessage, classify, encode, structure
from llmgw.wire.frames import DOWN_BYTES_MAX, FIRST_BYTES_MAX, LENGTH, UP_BYTES_MAX, FrameDecoder
from llmgw.wire.messages import (
    PROTOCOL,
    AgentDown,
    AgentUp,
    Certificate,
    Follow,
    Goodbye,
    Message,
    Ping,
    Refused,
    Register,
    Registered,
    RenewRequest,
    RouteChange,
    RouterDown,
    RouterReport,
    RouterUp,
    RouteTable,
    Unsupported,
)

REPLIES_MAX = 64
"""Unsupported answers that wait to be sent; a peer that says more unknown things than that learns of the first ones."""

RETRY_AFTER_SECONDS = CAP_SECONDS
"""With every Refused for a violation: the same peer would commit it again, so it comes at the slowest pace."""


class Role(enum.StrEnum):
    """Who dialled."""

    AGENT = "agent"
    ROUTER = "router"
    RENEWAL = "renewal"


class Phase(enum.StrEnum):
    """How far a session is."""

    NEW = "new"
    """Nothing was said."""
    ASKED = "asked"
    """The opener went up; its answer is awaited."""
    OPEN = "open"
    REFUSED = "refused"
    """The opener was answered by no."""
    CLOSING = "closing"
    """Over for another reason; what is still under way is dropped."""


R, P = Role, Phase

OPENERS: dict[type, Role] = {Register: R.AGENT, Follow: R.ROUTER, RenewRequest: R.RENEWAL}


def _set(*unions_or_classes: Any) -> frozenset[type]:
    members: set[type] = set()
    for item in unions_or_classes:
        members.update(typing.get_args(item) or (item,))
    return frozenset(members)


_NOTHING = _set()
_AGENT_ASKED = _set(Ping, Unsupported, Goodbye)
_ROUTER_ASKED = _set(Ping, Unsupported, Goodbye, RouterReport)

TABLE: dict[tuple[Role, Phase], tuple[frozenset[type], frozenset[type]]] = {
    # (role, phase): (up, down)
    (R.AGENT, P.NEW): (_set(Register), _set(Refused)),
    (R.AGENT, P.ASKED): (_AGENT_ASKED, _set(Registered, Refused, Ping, Unsupported)),
    (R.AGENT, P.OPEN): (_set(AgentUp), _set(AgentDown)),
    (R.AGENT, P.REFUSED): (_AGENT_ASKED, _NOTHING),
    (R.AGENT, P.CLOSING): (_set(AgentUp), _NOTHING),
    (R.ROUTER, P.NEW): (_set(Follow), _set(Refused)),
    (R.ROUTER, P.ASKED): (_ROUTER_ASKED, _set(RouterDown)),
    (R.ROUTER, P.OPEN): (_set(RouterUp), _set(RouterDown)),
    (R.ROUTER, P.REFUSED): (_ROUTER_ASKED, _NOTHING),
    (R.ROUTER, P.CLOSING): (_set(RouterUp), _NOTHING),
    (R.RENEWAL, P.NEW): (_set(RenewRequest), _set(Refused)),
    (R.RENEWAL, P.ASKED): (_NOTHING, _set(Certificate, Refused)),
    (R.RENEWAL, P.REFUSED): (_NOTHING, _NOTHING),
    (R.RENEWAL, P.CLOSING): (_NOTHING, _NOTHING),
}

MOVES: dict[tuple[Role, Phase, type], Phase] = {
    (R.AGENT, P.NEW, Register): P.ASKED,
    (R.AGENT, P.ASKED, Registered): P.OPEN,
    (R.ROUTER, P.NEW, Follow): P.ASKED,
    (R.ROUTER, P.ASKED, RouteTable): P.OPEN,
    (R.ROUTER, P.ASKED, RouteChange): P.OPEN,
    (R.RENEWAL, P.NEW, RenewRequest): P.ASKED,
    (R.RENEWAL, P.ASKED, Certificate): P.CLOSING,
    **{(role, P.NEW, Refused): P.CLOSING for role in Role},
    **{(role, P.ASKED, Refused): P.REFUSED for role in Role},
    **{(role, P.OPEN, Refused): P.CLOSING for role in (R.AGENT, R.ROUTER)},
}

DOWN_LIMITS: dict[tuple[Role, Phase], int] = {
    (R.AGENT, P.OPEN): DOWN_BYTES_MAX,
    # The answer to Follow is the table itself.
    (R.ROUTER, P.ASKED): DOWN_BYTES_MAX,
    (R.ROUTER, P.OPEN): DOWN_BYTES_MAX,
}
"""Bytes of a frame down; FIRST_BYTES_MAX elsewhere. Up it is UP_BYTES_MAX while open, and FIRST_BYTES_MAX elsewhere."""


class IncompatibleVersionError(PeerError):
    """The peer speaks another major version. `who` is its node or router id as far as its map says one."""

    def __init__(self, theirs: str, role: Role | None, who: str) -> None:
        super().__init__(
            PeerReason.INCOMPATIBLE_VERSION,
            f"{' '.join(filter(None, (role, who))) or 'control'} speaks {theirs}, and this side speaks"
            f" {version_text(PROTOCOL)}; upgrade the older one",
        )
        self.theirs = theirs
        """`2.0`, or a phrase where it said none."""
        self.ours = version_text(PROTOCOL)
        self.role = role
        """Of the side that dialled; None where control is the other version."""
        self.who = who


def version_text(protocol: Sequence[int]) -> str:
    """`1.0`."""
    return f"{protocol[0]}.{protocol[1]}"


class Session:
    """One side of one connection: a `ControlSession` accepts; an agent's, a router's and a renewal's dial."""

    def __init__(self, role: Role | None) -> None:
        self.role: Role | None = role
        """Of the side that dialled; None at control until the opener is in."""
        self.phase = Phase.NEW
        self.frames_received = 0
        self._accepting = role is None
        self._said_goodbye = False
        self._decoder = FrameDecoder(FIRST_BYTES_MAX)
        self._failure: PeerError | None = None
        self._replies: list[bytes] = []

    def receive(self, data: bytes | bytearray) -> list[Received]:
        """The messages that `data` completes. Raises PeerError, after the messages before the violation were given.

        Look at `replies()` after each call, also after one that raised.
        """
        if self._failure is not None:
            raise self._failure
        self._decoder.add(data)
        received: list[Received] = []
        try:
            while (fields := self._decoder.next_map()) is not None:
                self.frames_received += 1
                if (message := self._take(fields)) is not None:
                    received.append(message)
        except PeerError as error:
            self._fail(error)
            if not received:
                raise
        return received

    def end_of_stream(self) -> None:
        """The peer sends nothing more. Raises PeerError: TRUNCATED inside a frame, or what is still to be raised."""
        if self._failure is not None:
            raise self._failure
        self._decoder.finish()

    def replies(self) -> bytes:
        """What the session has to say on its own account, as frames, each once; empty mostly."""
        replies, self._replies = b"".join(self._replies), []
        return replies

    def may_send(self, kind: type) -> bool:
        """Whether `send` takes a message of that class now."""
        if self.role is None:
            return kind is Refused and self.phase is Phase.NEW
        if self._said_goodbye and not self._accepting:
            return False
        up, down = TABLE[self.role, self.phase]
        return kind in (down if self._accepting else up)

    def send(self, message: Message) -> bytes:
        """The bytes of a message of ours; the phase changes with it. Raises InvariantBroken where it is not legal."""
        kind = type(message)
        if not self.may_send(kind):
            raise InvariantBroken(f"{kind.__name__} is not sent in {self._where()}")
        data = encode(message)
        limit = self._limit(up=not self._accepting)
        if len(data) - LENGTH.size > limit:
            raise InvariantBroken(f"{kind.__name__} has {len(data)} bytes; the receiver takes {limit} now")
        self._move(kind)
        return data

    def _take(self, fields: dict[str, Any]) -> Received | None:
        """The message of one frame, or None for one that is dropped."""
        if self._accepting and self.phase is Phase.CLOSING and self.role is None:
            return None
        kind = classify(fields)
        if self.phase is Phase.NEW and self._accepting:
            return self._take_opener(kind, fields)
        if self._said_goodbye and self._accepting:
            raise PeerError(PeerReason.OUT_OF_TURN, "a message after Goodbye")
        if isinstance(kind, UnknownMessage):
            return self._take_unknown(kind)
        up, down = TABLE[self._known_role(), self.phase]
        if kind not in (up if self._accepting else down):
            raise PeerError(PeerReason.OUT_OF_TURN, f"{kind.__name__} in {self._where()}")
        self._judge_version(kind, fields)
        message = structure(fields, kind)
        if self._accepting and self.phase in (Phase.REFUSED, Phase.CLOSING):
            return None
        self._move(kind)
        return message

    def _take_opener(self, kind: "type | UnknownMessage", fields: dict[str, Any]) -> Received:
        if isinstance(kind, UnknownMessage) or kind not in OPENERS:
            name = kind.name if isinstance(kind, UnknownMessage) else kind.__name__
            expected = ", ".join(opener.__name__ for opener in OPENERS)
            raise PeerError(PeerReason.WRONG_FIRST_MESSAGE, f"expected one of {expected}, got {name!a}")
        self.role = OPENERS[kind]
        self._judge_version(kind, fields)
        message = structure(fields, kind)
        self._move(kind)
        return message

    def _take_unknown(self, unknown: UnknownMessage) -> UnknownMessage | None:
        if self._accepting and self.phase in (Phase.REFUSED, Phase.CLOSING):
            return None
        if not self.may_send(Unsupported):
            raise PeerError(PeerReason.OUT_OF_TURN, f"{unknown.name!a} in {self._where()}")
        if len(self._replies) < REPLIES_MAX:
            self._replies.append(self.send(Unsupported(unknown.name, unknown.command_id)))
        return unknown

    def _judge_version(self, kind: type, fields: dict[str, Any]) -> None:
        """Raise for an opener or an answer of another major version, whatever its other fields are like."""
        if kind not in (Register, Follow, Registered, Refused):
            return
        protocol = fields.get("protocol")
        if _is_version(protocol) and protocol[0] == PROTOCOL[0]:
            return
        # Of the answers the version is a field with a default, so that its absence means this major version.
        if protocol is None and "protocol" not in fields and kind in (Registered, Refused):
            return
        theirs = (
            version_text(protocol) if _is_version(protocol) else f"no version that is known here ({seen(protocol)})"
        )
        who = fields.get({Register: "node", Follow: "router"}.get(kind, ""))
        raise IncompatibleVersionError(
            theirs, self.role if self._accepting else None, who[:NAME_CHARS_MAX] if isinstance(who, str) else ""
        )

    def _fail(self, error: PeerError) -> None:
        self._failure = error
        if self._accepting and self.may_send(Refused):
            self._replies.append(self.send(Refused(str(error), RETRY_AFTER_SECONDS)))

    def _move(self, kind: type) -> None:
        if kind is Goodbye:
            self._said_goodbye = True
        if self.role is None:
            self.phase = Phase.CLOSING  # only Refused is sent by a control that has heard nothing
            return
        self.phase = MOVES.get((self.role, self.phase, kind), self.phase)
        self._decoder.bytes_max = self._limit(up=self._accepting)

    def _limit(self, *, up: bool) -> int:
        if up:
            return UP_BYTES_MAX if self.phase is Phase.OPEN else FIRST_BYTES_MAX
        return DOWN_LIMITS.get((self.role, self.phase), FIRST_BYTES_MAX) if self.role is not None else FIRST_BYTES_MAX

    def _known_role(self) -> Role:
        if self.role is None:
            raise InvariantBroken(f"a session without a role in {self.phase}")
        return self.role

    def _where(self) -> str:
        goodbye = ", after Goodbye" if self._said_goodbye else ""
        return f"the phase {self.phase} of {self.role or 'a session'}{goodbye}"


class ControlSession(Session):
    """The side that accepts. The opener says the role; sending Registered or a table opens it, and lifts the limits."""

    def __init__(self) -> None:
        super().__init__(None)


class AgentSession(Session):
    """An agent, dialling."""

    def __init__(self) -> None:
        super().__init__(Role.AGENT)


class RouterSession(Session):
    """A router, dialling."""

    def __init__(self) -> None:
        super().__init__(Role.ROUTER)


class RenewalSession(Session):
    """Somebody who dials for a certificate and for nothing else."""

    def __init__(self) -> None:
        super().__init__(Role.RENEWAL)


def _is_version(protocol: Any) -> TypeGuard[list[int]]:
    return isinstance(protocol, list) and [type(part) for part in protocol] == [int, int]
