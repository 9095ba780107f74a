"""
Whether open streams may still listen: looked at again every ``CHECK_INTERVAL``, and at once when an order says so. From
such an order until the answer is known, a stream is told nothing; one whose answer doesn't come is ended, as silence on
an open stream is the worst that a client can get.
"""

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mcp_channels.listen.beat import TICK
from mcp_channels.listen.stream import Stream
from mcp_channels.topics import Topic

CHECK_INTERVAL: Final = 15.0
"""Seconds after which it is looked at again whether a stream may still listen."""

CHECKED_AT_ONCE: Final = 64
"""The most streams that are checked together."""

CHECK_TIMEOUT: Final = 20.0
"""Seconds for one look; a project's own word may not come."""

LONGEST_DOUBT: Final = 60.0
"""Seconds for which a stream may be told nothing because nobody can say whether it may listen; then it ends."""

logger = logging.getLogger("mcp_channels.node")


class Verdict(NamedTuple):
    """
    What is left of a stream: the topics that it may hear of, and for how long.
    """

    topics: Collection[Topic]

    expires_in: float | None
    """Seconds until its credential ends; None: it doesn't."""


Check = Callable[[Stream, Any], Awaitable[Verdict | None]]
"""Looks whether a stream, with the credentials that it brought, may still listen; None: it may not."""


@dataclass(slots=True, eq=False)
class Held:
    """
    A stream, what it brought, and what is known of it.
    """

    stream: Stream
    check: Check
    credentials: Any
    checked_at: float
    """When it was last looked at whether it may listen, by the loop's clock."""
    key: int | None = None
    """The key of its row, once it is admitted."""
    principal: int | None = None
    is_ordered: bool = False
    """Whether somebody may wait for its end."""
    doubt: int = 0
    """The number of the last order to check it that isn't settled; 0: none."""
    doubted_at: float = 0.0
    """Since when it is in doubt."""
    failed_at: float = float("-inf")
    """When it could not be looked at whether it may listen, if that is how it is."""
    recorded: int = 0
    """How much of what it delivered is written in the database."""


class Checking:
    """
    The looks at the streams of one node. All methods are to be called on its event loop.
    """

    def __init__(
        self,
        held: Mapping[int, Held],
        *,
        drop: Callable[[Stream, Collection[Topic]], None],
        start: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
    ) -> None:
        """
        Args:
            held: the node's streams, as they are at any time.
            drop: takes topics from a stream.
            start: runs a coroutine as a task of the node's.
        """
        self._loop = asyncio.get_running_loop()
        self._held = held
        self._drop = drop
        self._start = start
        self._doubts = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    def doubt(self, held: Held) -> None:
        """
        Tell a stream nothing until it has been looked at whether it may listen.
        """
        if not held.doubt:
            held.doubted_at = self._loop.time()
        held.doubt = next(self._doubts)
        held.stream.hold()

    def soon(self) -> None:
        """
        Look at those that are due.
        """
        if self._task is None or self._task.done():
            self._task = self._start(self._check_all(), "check")

    async def _check_all(self) -> None:
        while due := self._due():
            failed = await self.check(due)
            # What fails is left for the next tick; meanwhile others may have come into doubt.
            if len(failed) == len(due) and all(held.failed_at > float("-inf") for held in self._due()):
                return

    def _due(self) -> list[Held]:
        """
        The streams to look at next: those in doubt first, as they are told nothing meanwhile, and those that could not
        be looked at before behind all others, so that none of these has to wait for them.
        """
        now = self._loop.time()
        due = [
            held
            for held in self._held.values()
            if (held.doubt or held.checked_at <= now - CHECK_INTERVAL) and held.failed_at <= now - TICK / 2
        ]
        return heapq.nsmallest(CHECKED_AT_ONCE, due, key=lambda held: (held.failed_at, not held.doubt))

    async def check(self, some: Sequence[Held]) -> list[BaseException]:
        """
        Look whether these may still listen, and return what went wrong with those of which it could not be found out.
        """
        doubts = [held.doubt for held in some]
        now = self._loop.time()
        verdicts = await asyncio.gather(*map(_look, some), return_exceptions=True)
        failed, is_new = [], False
        for held, doubt, verdict in zip(some, doubts, verdicts, strict=True):
            if isinstance(verdict, BaseException):
                failed.append(verdict)
                is_new = is_new or held.failed_at == float("-inf")
                held.failed_at = self._loop.time()
                if held.doubt and held.failed_at - held.doubted_at >= LONGEST_DOUBT:
                    held.stream.end("server_error")
            else:
                held.failed_at = float("-inf")
                held.checked_at = now + random.uniform(0, CHECK_INTERVAL / 4)  # noqa: S311  # not all at once
                self._judge(held, doubt, verdict)
        # What goes on failing is said once.
        if is_new:
            logger.warning(
                "It could not be looked at whether %d streams may still listen (%s)",
                len(failed),
                type(failed[-1]).__name__,
            )
        return failed

    def _judge(self, held: Held, doubt: int, verdict: Verdict | None) -> None:
        if verdict is None:
            held.stream.end("revoked")
            held.doubt = 0
            return
        held.stream.expire_in(verdict.expires_in)
        lost = [topic for topic in held.stream.topics if topic not in verdict.topics]
        if lost:
            self._drop(held.stream, lost)
            if not held.stream.topics:
                held.stream.end("revoked")
        # Another order may have come since.
        if held.doubt == doubt:
            held.doubt = 0
            held.stream.resume()


async def _look(held: Held) -> Verdict | None:
    async with asyncio.timeout(CHECK_TIMEOUT):
        return await held.check(held.stream, held.credentials)
