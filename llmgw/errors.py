"""Errors, typed by whose fault they are.

They are caught at three boundaries only: one connection (`PeerError`), one HTTP request, one engine
process (`EngineError`). `ConfigError` ends a command with exit code 2 before any socket is opened. Anything
else ends the process: it is a bug, and a half-alive control plane is worse than a restarted one.
"""

import enum

import attrs


class LlmgwError(Exception):
    """The base of every error that llmgw raises on purpose."""


class PeerReason(enum.StrEnum):
    """Why the other end of a connection was at fault. Closed: the fuzz tests draw each one."""

    FRAME_TOO_LARGE = "frame too large"
    TOO_MANY_CONTAINERS = "too many arrays and maps in one frame"
    NOT_MSGPACK = "not msgpack"
    NOT_A_MAP = "a frame holds something other than one map"
    BAD_KEY = "a map key is not a unique str"
    BAD_FIELD = "a field is missing or of the wrong type"
    TRUNCATED = "the stream ended inside a frame"
    WRONG_FIRST_MESSAGE = "the first message is not one that opens a session"
    OUT_OF_TURN = "a message that this session does not allow now"
    INCOMPATIBLE_VERSION = "another major version of the protocol"
    TIMEOUT = "nothing was heard for too long"


class PeerError(LlmgwError):
    """The peer broke the protocol. Ends that connection, with one log line, and nothing else.

    `str()` is one line: the reason, then what was expected and seen.
    """

    def __init__(self, reason: PeerReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


@attrs.frozen
class Mistake:
    """One mistake in a configuration: everything that a person needs to mend it."""

    origin: str
    """The file (with the line where known) or the environment variable."""
    path: str
    """Dotted path of the setting, `models[0].profile.gpus`; empty for the file as a whole."""
    expected: str
    """What would have been right, as a phrase."""
    value: str = ""
    """What was seen, as written; empty where nothing was seen or the value is secret."""
    hint: str = ""
    """The nearest known key, or what to do."""

    def __str__(self) -> str:
        where = f"{self.origin}: {self.path}" if self.path else self.origin
        seen = f", got {self.value}" if self.value else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}: {self.expected}{seen}{hint}"


class ConfigError(LlmgwError):
    """The operator's configuration is wrong. Carries every mistake at once."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = mistakes


class RefusedError(LlmgwError):
    """What an operator asked for is not done. `str()` says why and what to do instead."""


class EngineError(LlmgwError):
    """An engine process (or what stands in its place) failed; says what it did and showed last."""


class InvariantBroken(LlmgwError):  # noqa: N818  a state of affairs, named as Trio names its own
    """We have a bug. Carries the story: what is known about the subject that led here."""
