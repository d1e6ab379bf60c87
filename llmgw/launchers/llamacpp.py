"""`python -m llmgw.launchers.llamacpp`: a `llama-server` made of the native llama.cpp server in xllamacpp.

It behaves like llama-server where that is good (flags, words, exit code 1, output by the line on stderr, 503 on
`/health` while it loads) and ends at once where that hangs.

Signals: the native server keeps Python's lock for as long as it loads, and again while it shuts down, where it waits
30 s for a streaming client. No handler of Python's could run then. So the signals keep their default action, which
ends the process at once, until the server is up; from then on one is answered by leaving without the native shutdown.
Nothing is lost by that: the kernel closes the sockets, and there is no state to write.
"""

import errno
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from llmgw.launchers.llamacpp_options import Settings, UsageError, apply_settings, parse_options

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HOST_DEFAULT = "127.0.0.1"


def main() -> NoReturn:
    """Serve until a signal comes. Exit code 0 after one, 1 when serving is impossible."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        settings = parse_options(sys.argv[1:], os.environ)
    except UsageError as error:
        fail(str(error))
    for host in settings.get("hostnames", [HOST_DEFAULT]):
        check_address(host, settings["port"])
    server = start_server(settings)
    received = signal.Signals(wait_for_signal())
    say(f"received {received.name}, leaving {server.listening_address}")
    os._exit(0)


def start_server(settings: Settings) -> Any:
    """The running `xllamacpp.Server`, model loaded. Ends the process when that fails; the native log says why."""
    try:
        import xllamacpp  # noqa: PLC0415
    except ImportError as error:
        fail(f"xllamacpp cannot be imported: {error}; install it with: pip install 'llmgw[llamacpp]'")
    params = xllamacpp.CommonParams()
    try:
        apply_settings(settings, params, xllamacpp)
    except (OverflowError, TypeError, ValueError) as error:
        fail(f"a value does not fit: {error}")
    except AttributeError as error:
        fail(f"this version of xllamacpp is too old for that: {error}; install a newer one")
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        fail(f"the server did not start, see above: {error}")


def check_address(host: str, port: int) -> None:
    """End the process when the address is taken, in words that say so: the native server only says that it failed."""
    if host.endswith(".sock"):
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the native server does it: a connection that lingers from an earlier run is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "address already in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            fail(f"couldn't bind HTTP server socket, hostname: {host}, port: {port}: {reason}")


def wait_for_signal() -> int:
    """Block until one of the ending signals arrives and return its number.

    Through a pipe: a signal may reach one of the native threads, and only a written byte surely wakes this one.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: None)
    return os.read(reader, 1)[0]


def say(text: str) -> None:
    sys.stderr.write(f"llamacpp launcher: {text}\n")


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"error: {text}\n")
    sys.exit(1)


if __name__ == "__main__":
    main()
