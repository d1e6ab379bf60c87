"""Statuses on their way: numbered, sent again after a new registration, kept until they are acknowledged.

Numbers rise per instance of an agent, and an instance outlives the agent's process. What an earlier process used is
known only from control's answer to the first registration, so until then statuses have no number.
"""

import attrs

from llmgw.core.lifecycle import ShardReport

STATUSES_MAX = 1024
"""Kept while control is away. A node's shards make some three each in that time; beyond, of each launch only the
newest is kept: it says all that matters, and the heartbeats carry the whole list anyway."""


@attrs.frozen
class Status:
    """One status."""

    number: int
    report: ShardReport
    output: str = ""
    at: float = 0.0
    """When it was true, on the agent's clock."""

    def aged(self, now: float) -> ShardReport:
        """The report, as old as it is by now."""
        return attrs.evolve(self.report, since_seconds=self.report.since_seconds + max(0.0, now - self.at))


Launch = tuple[str, int]
"""(shard id, epoch)."""


class Outbox:
    """What control has not acknowledged yet."""

    def __init__(self, statuses_max: int = STATUSES_MAX) -> None:
        self._statuses_max = statuses_max
        self._waiting: list[Status] = []
        self._next: int | None = None
        """None: never registered in this process."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, report: ShardReport, output: str, now: float) -> Status | None:
        """The numbered status to send; None: nothing is sent before the first registration."""
        number = 0
        if self._next is not None:
            number = self._next
            self._next += 1
        status = Status(number, report, output, now)
        self._waiting.append(status)
        if len(self._waiting) > self._statuses_max:
            newest = {_launch(waiting): waiting for waiting in self._waiting}
            self._waiting = [waiting for waiting in self._waiting if newest[_launch(waiting)] is waiting]
        return status if self._next is not None else None

    def registered(self, acked: int) -> tuple[tuple[Launch, ...], tuple[Status, ...]]:
        """After an accepted registration: the launches that are settled by what control had handled already, and
        the statuses to send again, in order.
        """
        if self._next is not None:
            return self.acknowledged(acked), tuple(self._waiting)
        # What control has handled of this instance came from earlier processes.
        first = acked + 1
        self._waiting = [attrs.evolve(one, number=first + index) for index, one in enumerate(self._waiting)]
        self._next = first + len(self._waiting)
        return (), tuple(self._waiting)

    def acknowledged(self, number: int) -> tuple[Launch, ...]:
        """Take away every status up to `number`; the launches of which none is left."""
        if self._next is None:
            return ()
        handled = [one for one in self._waiting if one.number <= number]
        self._waiting = [one for one in self._waiting if one.number > number]
        open_launches = {_launch(one) for one in self._waiting}
        settled = dict.fromkeys(_launch(one) for one in handled)
        return tuple(launch for launch in settled if launch not in open_launches)


def _launch(status: Status) -> Launch:
    return status.report.shard, status.report.epoch
