"""Everything that can go wrong with a request, with the status and the words that a client of that path expects.

A `Problem` is raised wherever a request cannot go on; it is caught in one place, which answers it in the dialect of
the path. Its message is for the person who sent the request: what was expected, what was seen, what to do.
"""

import enum
from typing import Protocol

import attrs
import msgspec

from llmgw.errors import LlmgwError


class Trouble(enum.Enum):
    """Why a request is answered by the router itself."""

    MALFORMED = "malformed"
    INVALID_BODY = "invalid body"
    INVALID_KEY = "invalid key"
    UNKNOWN_PATH = "unknown path"
    UNKNOWN_MODEL = "unknown model"
    WRONG_METHOD = "wrong method"
    SLOW_REQUEST = "slow request"
    LARGE_BODY = "large body"
    ENCODED_BODY = "encoded body"
    EXPECTATION = "expectation"
    LARGE_HEAD = "large head"
    WRONG_VERSION = "wrong version"
    ENGINE_FAILED = "engine failed"
    NOT_READY = "not ready"
    ENGINE_SILENT = "engine silent"


@attrs.frozen
class Meaning:
    """A trouble in HTTP and in OpenAI's words."""

    status: int
    kind: str
    """`type` of the error object."""
    code: str | None = None


_INVALID = "invalid_request_error"
_SERVER = "server_error"

MEANINGS: dict[Trouble, Meaning] = {
    Trouble.MALFORMED: Meaning(400, _INVALID, "malformed_request"),
    Trouble.INVALID_BODY: Meaning(400, _INVALID),
    Trouble.INVALID_KEY: Meaning(401, _INVALID, "invalid_api_key"),
    Trouble.UNKNOWN_PATH: Meaning(404, _INVALID, "unknown_url"),
    Trouble.UNKNOWN_MODEL: Meaning(404, _INVALID, "model_not_found"),
    Trouble.WRONG_METHOD: Meaning(405, _INVALID, "method_not_allowed"),
    Trouble.SLOW_REQUEST: Meaning(408, _INVALID, "request_timeout"),
    Trouble.LARGE_BODY: Meaning(413, _INVALID, "request_too_large"),
    Trouble.ENCODED_BODY: Meaning(415, _INVALID, "unsupported_content_encoding"),
    Trouble.EXPECTATION: Meaning(417, _INVALID, "expectation_failed"),
    Trouble.LARGE_HEAD: Meaning(431, _INVALID, "request_header_too_large"),
    Trouble.WRONG_VERSION: Meaning(505, _INVALID, "http_version_not_supported"),
    Trouble.ENGINE_FAILED: Meaning(502, _SERVER, "bad_gateway"),
    Trouble.NOT_READY: Meaning(503, _SERVER, "server_is_overloaded"),
    Trouble.ENGINE_SILENT: Meaning(504, _SERVER, "gateway_timeout"),
}
"""Every trouble has its row (a test holds it)."""

OF_HEADS = {400: Trouble.MALFORMED, 431: Trouble.LARGE_HEAD, 505: Trouble.WRONG_VERSION}
"""Statuses of `HeadError` as troubles."""


class Problem(LlmgwError):  # noqa: N818  a problem with a request; most are not errors of ours
    """A request that is answered here. `str()` is the message for the client."""

    def __init__(
        self,
        trouble: Trouble,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        allow: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.message = message
        self.param = param
        """The field of the request that is wrong."""
        self.retry_after_seconds = retry_after_seconds
        self.allow = allow
        """The methods that the path has, with a wrong one."""

    @property
    def status(self) -> int:
        """Of the answer."""
        return MEANINGS[self.trouble].status


class Dialect(Protocol):
    """How an API writes errors."""

    def body(self, problem: Problem) -> bytes:
        """The body of an error answer, JSON."""

    def event(self, problem: Problem) -> bytes:
        """An error within a stream: whole lines, with the blank line that ends the event."""


class OpenAi:
    """`{"error": {"message", "type", "param", "code"}}`, always with all four keys."""

    def body(self, problem: Problem) -> bytes:
        """The body of an error answer, JSON."""
        meaning = MEANINGS[problem.trouble]
        error = {
            "message": problem.message,
            "type": meaning.kind,
            "param": problem.param,
            "code": meaning.code,
        }
        return msgspec.json.encode({"error": error})

    def event(self, problem: Problem) -> bytes:
        """A data event with an `error` key, which makes clients raise. JSON has no line breaks of its own."""
        return b"data: " + self.body(problem) + b"\n\n"


OPENAI = OpenAi()
