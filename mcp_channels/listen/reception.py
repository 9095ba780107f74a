"""
What arrives from the channel layer: each message is looked at, and handed on to the hub.

A message that can't be read is dropped. One that is missing is found out by its publisher's numbers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from mcp_channels import layers, topics
from mcp_channels.listen.fences import FENCE, Fences
from mcp_channels.topics import MalformedError, Topic

RETRY_DELAY: Final = 0.25
"""Seconds before the first new attempt at a layer that failed; doubled with each, up to ``RETRY_CEILING``."""

RETRY_CEILING: Final = 2.0

PUBLISHERS: Final = 10_000
"""The most publishers whose last number is remembered."""

UNREADABLE_IN_A_ROW: Final = 100
"""Messages in a row that the layer can't decode, after which it is given time to breathe."""

COMPLAINT_INTERVAL: Final = 60.0
"""Seconds between two log lines about messages that were dropped."""

TURN: Final = 0.01
"""Seconds for which messages are handled one after another before what they caused has its turn."""

PAUSE: Final = 0.0001
"""Seconds of waiting for a message, in which others had their turn."""

ROUNDS: Final = 3
"""Rounds of the event loop that this takes: in one the writers are woken, and in the next they write."""

logger = logging.getLogger("mcp_channels.hub")

Receive = Callable[[dict[str, Any]], None]
"""Takes a message of the layer; raises ``MalformedError`` if it is none that a hub knows."""

Missed = Callable[[Iterable[Topic] | None], None]
"""Hears that changes of these topics may have been missed; None: of any."""


class Reception:
    """
    The messages of one hub's channel. All methods are to be called on its event loop.
    """

    def __init__(
        self, layer: Any, fences: Fences, *, receive: Receive, missed: Missed, failed: Callable[[Exception], None]
    ) -> None:
        """
        Args:
            layer: the channel layer.
            fences: takes what the hub sent to itself.
            receive: takes everything else.
            missed: hears that changes may have been missed.
            failed: hears of an error of the layer.
        """
        self._layer = layer
        self._fences = fences
        self._receive = receive
        self._missed = missed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._numbers: dict[str, int] = {}
        self._began_at = self._loop.time()
        self._dropped = 0
        self._complained_at = float("-inf")

    def begin(self) -> None:
        """
        From here on messages arrive; what was missed before has been made up for.
        """
        self._numbers.clear()
        self._began_at = self._loop.time()

    async def run(self, channel: str) -> None:
        """
        Receive from ``channel``, for ever.
        """
        unreadable, failed, rested_at = 0, 0, self._loop.time()
        while True:
            asked_at = self._loop.time()
            try:
                message = await self._layer.receive(channel)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the edge of the receive loop: whatever a layer raises
                if layers.is_unreadable(error):
                    unreadable += 1
                    self._drop(f"it can't be decoded: {type(error).__name__}")
                    await asyncio.sleep(RETRY_DELAY if unreadable > UNREADABLE_IN_A_ROW else 0)
                else:
                    failed += 1
                    self._failed(error)
                    # Each connection of a pool may be broken, and what waits meanwhile fills the hub's queue.
                    await asyncio.sleep(retry_delay(failed - layers.ATTEMPTS))
                continue
            unreadable = failed = 0
            if (got_at := self._loop.time()) - asked_at > PAUSE:
                rested_at = got_at
            try:
                self._take(message)
            except MalformedError as error:
                self._drop(str(error))
            except Exception:  # one bad message must not end the loop that all streams live on
                logger.exception("A message of the channel layer could not be handled")
            # A layer that has more messages returns them without letting anybody else run.
            if self._loop.time() - rested_at > TURN:
                for _ in range(ROUNDS):
                    await asyncio.sleep(0)
                rested_at = self._loop.time()

    def _take(self, message: object) -> None:
        if not isinstance(message, dict):
            raise MalformedError("it is no dict")
        if message.get("type") == FENCE:
            self._fences.take(message)
            return
        # On a bounded layer everything goes to every hub.
        self._fences.note(is_for_all=layers.is_bounded(self._layer))
        if "number" in message and self._has_missed(message):
            logger.warning("The channel layer dropped messages; every stream was told that its topics may have changed")
            self._missed(None)
        self._receive(message)

    def _drop(self, why: str) -> None:
        """
        Say that a message was dropped, but not for each of many.
        """
        self._dropped += 1
        now = self._loop.time()
        if now - self._complained_at >= COMPLAINT_INTERVAL:
            logger.warning("%d messages of the channel layer were dropped; of the last, %s", self._dropped, why)
            self._dropped, self._complained_at = 0, now

    def _has_missed(self, message: dict[str, Any]) -> bool:
        """
        Whether a publisher's numbers show that a message was dropped by the layer.
        """
        match message:
            case {"type": kind, "from": str(name), "number": int(number), "since": float() | int() | None as since}:
                before = number if kind == topics.SEQUENCE else number - 1
            case _:
                return False
        last = self._numbers.pop(name, None)
        self._numbers[name] = number if last is None else max(last, number)
        if len(self._numbers) > PUBLISHERS:
            del self._numbers[next(iter(self._numbers))]
        if last is not None:
            return before > last
        # Not heard of until now: was the one before sent when this hub could hear it?
        return since is not None and self._loop.time() - since > self._began_at


def retry_delay(failures: int) -> float:
    """
    Seconds to wait after so many failures in a row; those below one are forgiven.
    """
    if failures < 1:
        return layers.ATTEMPT_DELAY
    delay: float = min(RETRY_DELAY * 2 ** min(failures - 1, 8), RETRY_CEILING)
    return delay
