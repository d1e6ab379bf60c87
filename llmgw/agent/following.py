"""One task per engine: its life, as its launcher tells it, in the words of the supervision."""

import structlog
import trio

from llmgw.agent.launch import EngineEvent, Exited, Gone, RunningEngine, ShimKilled, Started
from llmgw.core import shard_events as words
from llmgw.core.lifecycle import Cause
from llmgw.engines.base import Engine, Exit

log = structlog.get_logger()

UNEXPLAINED = frozenset({Cause.EXITED, Cause.SIGNALLED})
"""What an adapter says that does not know the output."""


async def follow(engine: RunningEngine, adapter: Engine | None, inbox: "trio.MemorySendChannel[words.Event]") -> None:
    """Send every event of `engine` to the supervisor, up to its last."""
    while True:
        event = await engine.wait_event()
        await inbox.send(translated(engine.shard, engine.epoch, event, adapter))
        if isinstance(event, Gone):
            return


async def see_off(engine: RunningEngine) -> None:
    """End what is left of a launch that a newer one of the same shard has replaced."""
    log.warning("older launch found beside a newer one", shard=engine.shard, epoch=engine.epoch)
    await engine.stop(0.0)
    while not isinstance(await engine.wait_event(), Gone):
        pass
    await engine.forget()


def translated(shard: str, epoch: int, event: EngineEvent, adapter: Engine | None) -> words.Event:
    """The event in the words of the supervision; the adapter explains an end that nobody asked for."""
    match event:
        case Started(pid):
            return words.EngineStarted(shard, epoch, pid)
        case ShimKilled(error, output):
            return words.ShimEnded(shard, epoch, error, output)
        case Gone(unproven):
            if unproven:
                log.warning("processes left alone, not proven ours", shard=shard, epoch=epoch, pids=unproven)
            return words.EngineGone(shard, epoch)
        case Exited():
            cause, error = explained(event, adapter)
            if event.dropped_bytes:
                log.warning("output was dropped", shard=shard, epoch=epoch, bytes=event.dropped_bytes)
            return words.EngineExited(
                shard, epoch, event.code, event.signal, cause, error, event.output, event.age_seconds
            )


def explained(event: Exited, adapter: Engine | None) -> tuple[str, str]:
    """(cause, error) of an end. What the kernel or the shim knows stands; else the engine's own words count."""
    if adapter is None or event.requested or event.cause not in UNEXPLAINED:
        return event.cause, event.error
    explanation = adapter.explain(Exit(event.code, event.signal), event.output)
    if explanation.cause in UNEXPLAINED and not explanation.hint:
        # The shim knows as much, and whether the sender of a signal is known.
        ended = event.error if event.signal is not None else explanation.error
        return event.cause, ended
    hint = f" ({explanation.hint})" if explanation.hint else ""
    return explanation.cause.value, f"{event.error}: {explanation.error}{hint}"
