"""One HTTP request to control's admin address, and errors that say what to do about them."""

import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

import attrs

DEFAULT_URL = "http://127.0.0.1:7071"
"""The default of `[admin] listen`."""
ADMIN_VARIABLE = "LLMGW_ADMIN_URL"

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""A status of 10,000 nodes with 8 GPUs is some 30 MB; what is larger is not ours."""
TIMEOUT_SECONDS = 10.0
"""Control answers within milliseconds unless it is very busy."""


class NotReached(Exception):  # noqa: N818  reads as what happened
    """Control gave no usable answer. `str()` says where it was looked for, what happened, and what to do."""


@attrs.frozen
class Admin:
    """Where control's admin server is, and who said so."""

    url: str
    """Without a trailing slash."""
    origin: str
    """`--admin`, `LLMGW_ADMIN_URL` or `the default`."""


def choose_admin(option: str | None, environment: Mapping[str, str]) -> Admin:
    """The address to ask: the option, else the variable, else the default. ValueError if it is no HTTP URL."""
    if option is not None:
        return Admin(_normal_url(option, "--admin"), "--admin")
    variable = environment.get(ADMIN_VARIABLE, "")
    if variable:
        return Admin(_normal_url(variable, ADMIN_VARIABLE), ADMIN_VARIABLE)
    return Admin(DEFAULT_URL, "the default")


def get(admin: Admin, path: str) -> bytes:
    """The body of `GET path`. NotReached on anything but an answer 200."""
    request = urllib.request.Request(admin.url + path, headers={"Accept": "application/json"})  # noqa: S310
    # Proxies of the environment are for the internet; the admin address is on loopback or in one's own network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            body: bytes = answer.read(ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise NotReached(_wrong_server(admin, f"answered {error.code} {error.reason} to GET {path}")) from None
    except urllib.error.URLError as error:
        raise NotReached(_silent(admin, _phrase(error.reason))) from None
    except http.client.HTTPException as error:
        raise NotReached(_wrong_server(admin, f"answered what is not HTTP ({type(error).__name__})")) from None
    except OSError as error:
        raise NotReached(_silent(admin, _phrase(error))) from None
    if len(body) > ANSWER_BYTES_MAX:
        raise NotReached(_wrong_server(admin, f"answered more than {ANSWER_BYTES_MAX} bytes"))
    return body


def wrong_answer(admin: Admin, detail: str) -> NotReached:
    """For an answer that came and cannot be read."""
    return NotReached(_wrong_server(admin, f"gave an answer that this llmgw cannot read: {detail}"))


def _normal_url(text: str, origin: str) -> str:
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{origin}: expected a URL as {DEFAULT_URL}, got {text!r} ({error})") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise ValueError(f"{origin}: expected a URL as {DEFAULT_URL}, got {text!r}")
    if any(letter <= " " or letter == "\x7f" for letter in url):
        raise ValueError(f"{origin}: expected a URL as {DEFAULT_URL}, got {text!r} (it has a space or worse in it)")
    return url.rstrip("/")


def _silent(admin: Admin, what: str) -> str:
    return (
        f"cannot reach control at {admin.url} ({admin.origin}): {what}\n"
        "Is llmgw-control running there? Its address is `[admin] listen` in cluster.toml; "
        f"say another one with --admin URL or {ADMIN_VARIABLE}."
    )


def _wrong_server(admin: Admin, what: str) -> str:
    return (
        f"{admin.url} ({admin.origin}) {what}\n"
        "Is that `[admin] listen` of cluster.toml, and not the router's or the agents' address? "
        f"Say another one with --admin URL or {ADMIN_VARIABLE}."
    )


def _phrase(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"
    if isinstance(reason, OSError) and reason.errno is not None and reason.strerror:
        return os.strerror(reason.errno).lower() if reason.errno > 0 else reason.strerror
    return str(reason) or type(reason).__name__
