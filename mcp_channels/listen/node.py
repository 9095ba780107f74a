"""
One event loop's place among all that share the database: its streams are rows there, and orders for them come from it.

A stream is admitted before it is acknowledged, and its row is deleted when it has ended. What it supersedes ends before
it is acknowledged, so that a client never holds more than its cap. A node that says nothing for ``DEAD_AFTER`` is dead,
and another one deletes its rows.

Whether a stream may still listen is looked at again from time to time, and at once when an order says so: see
``checking``.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from channels.db import database_sync_to_async

from mcp_channels.batching import Batcher
from mcp_channels.conf import settings
from mcp_channels.listen import admission, orders, registry
from mcp_channels.listen.admission import Admission, Candidate, Delay, Displaced, Outcome
from mcp_channels.listen.beat import TICK, Beat, Seen
from mcp_channels.listen.checking import Checking, Held
from mcp_channels.listen.handover import Handovers
from mcp_channels.listen.membership import Membership
from mcp_channels.listen.orders import CHECK, ENDED, RECEIVED
from mcp_channels.listen.registry import Delivery
from mcp_channels.listen.stream import REASONS, Reason, Stream
from mcp_channels.models import Node as NodeRow
from mcp_channels.topics import Topic

RELEASE_TIMEOUT: Final = 1.0
"""Seconds that the end of a request waits for its row to be deleted; past it, that goes on by itself."""

EARLY: Final = 1000
"""The most orders, and principals, that are remembered for streams which are not known yet."""

logger = logging.getLogger("mcp_channels.node")

_T = TypeVar("_T")


class Node:
    """
    The streams of one event loop, as the others know them. All methods are to be called on that loop.
    """

    def __init__(
        self,
        *,
        drop: Callable[[Stream, Collection[Topic]], None],
        membership: Membership,
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        """
        Args:
            drop: takes topics from a stream.
            membership: the place on the channel layer.
            finish: is called when the last stream has ended at a shutdown.
        """
        self._loop = asyncio.get_running_loop()
        self._membership = membership
        self._finish = finish
        self.draining = False
        """Whether the process is shutting down: with its last stream the node's row goes."""
        self._admissions: Batcher[Candidate, Outcome] = Batcher(_admit, abandoned=self._give_up)
        self._releases: Batcher[int, None] = Batcher(_release)
        self._admitting = 0
        self._registering = asyncio.Lock()
        self._row: NodeRow | None = None
        self._left = asyncio.Event()
        """That the row is gone, and the layer left, as the last stream ended at a shutdown."""
        self._beat: Beat | None = None
        self._handovers = Handovers()
        self._held: dict[int, Held] = {}
        self._leaving: set[int] = set()
        self._unreleased: set[int] = set()
        self._early: dict[int, str] = {}
        self._suspects: dict[int, float] = {}
        self._all_suspect_at = float("-inf")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._checking = Checking(self._held, drop=drop, start=self._start)

    # Being let in

    async def admit(self, held: Held, candidate: Candidate) -> bool:
        """
        Let a stream in under its principal's cap, and see those end that it supersedes. A principal that supersedes
        itself over and over is made to wait. False: the stream ended in that time.

        The caller must ``release`` the stream, also when this raises or is cancelled.

        Raises:
            NotAdmittedError: the principal may hold no stream.
            Exception: whatever keeps it from being looked at who is calling, where that is in doubt.
        """
        if held.stream.reason is not None:
            # The client has left, or the process ends: nobody is superseded for it.
            return False
        outcome = await self._admit(candidate)
        if isinstance(outcome, Delay):
            if await held.stream.ends_within(outcome.seconds):
                return False
            outcome = await self._admit(Candidate(candidate.principal, candidate.row, has_waited=True))
            # What was found out before the wait is old.
            self._checking.doubt(held)
        self._hold(held, cast("Admission", outcome))
        if outcome.displaced:
            await self._hand_over(outcome.displaced)
        if held.doubt and (failed := await self._checking.check([held])):
            raise failed[0]
        return True

    async def _admit(self, candidate: Candidate) -> Any:
        self._admitting += 1
        try:
            candidate.row.node_id = await self._register() if self._row is None else self._row.pk
            return await self._admissions.call(candidate)
        finally:
            self._admitting -= 1

    def _give_up(self, outcome: Outcome) -> None:
        """
        Give back the place of a request that was cancelled on its way into the database.
        """
        if isinstance(outcome, Admission):
            self._leave(outcome.key)

    async def _register(self) -> str:
        async with self._registering:
            if self._row is None:
                row = NodeRow(
                    id=secrets.token_hex(16),
                    host=socket.gethostname()[:190],
                    pid=os.getpid(),
                    channel=self._membership.channel,
                )
                await database_sync_to_async(registry.register)(row)
                self._left.clear()
                self._row = row
                self._beat = Beat(row.pk)
                self._start(self._run(self._beat), "beat")
            return str(self._row.pk)

    def _hold(self, held: Held, admitted: Admission) -> None:
        held.key, held.principal = admitted.key, admitted.principal
        self._held[admitted.key] = held
        if admitted.is_superseded:
            self._obey(held, "superseded")
        early = self._early.pop(admitted.key, None)
        if early is not None:
            self._obey(held, early)
        # Its principal's standing may have changed since it was looked at, and without the layer nobody says so.
        suspect_at = max(self._suspects.get(admitted.principal, float("-inf")), self._all_suspect_at)
        if suspect_at >= held.checked_at or self._membership.is_down:
            self._checking.doubt(held)

    async def _hand_over(self, displaced: Sequence[Displaced]) -> None:
        handover = self._handovers.expect(displaced)
        far = []
        for key, node in displaced:
            held = self._held.get(key)
            if held is not None:
                self._handovers.received(key)
                self._obey(held, "superseded")
            elif self._row is not None and node == self._row.pk:
                # It has ended meanwhile, or never began.
                self._handovers.ended(key)
            else:
                far.append((key, "superseded"))
        orders.send(far)
        await handover.wait(is_layer_down=self._membership.is_down)

    # Leaving

    async def release(self, held: Held) -> None:
        """
        Give back the place of a stream that has ended.
        """
        key, held.key = held.key, None
        if key is None:
            return
        del self._held[key]
        if held.is_ordered:
            self._handovers.ended(key)
            orders.send([(key, ENDED)])
        # A server that cancels its requests may end without draining first.
        is_shutdown = held.stream.reason == "shutdown"
        leaving = self._leave(key, is_shutdown=is_shutdown)
        # The wait is only for a process that is about to end; some do so when the first of their requests has ended.
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await asyncio.wait([leaving])
                if is_shutdown:
                    await self._left.wait()

    @property
    def owes(self) -> bool:
        """
        Whether rows are left to be deleted which the database does not take yet.
        """
        return self._beat is not None and bool(self._leaving or self._unreleased or self._beat.is_failing)

    @property
    def is_database_down(self) -> bool | None:
        """
        Whether the database doesn't answer the node's looks; None where the node has no row and doesn't look.
        """
        beat = self._beat
        return None if beat is None else beat.is_unanswered

    def _leave(self, key: int, *, is_shutdown: bool = False) -> "asyncio.Task[None]":
        """
        Delete a stream's row; at a shutdown, with the last one the node's as well.
        """
        self._leaving.add(key)
        return self._start(self._delete_row(key, is_shutdown=is_shutdown), "release")

    async def _delete_row(self, key: int, *, is_shutdown: bool) -> None:
        try:
            await self._releases.call(key)
        except Exception as error:  # the database is down: the beat tries again
            logger.debug("A stream's row could not be deleted: %r", error)
            self._unreleased.add(key)
        finally:
            self._leaving.discard(key)
        if (is_shutdown or self.draining) and not (self._held or self._leaving or self._admitting):
            await asyncio.gather(self._unregister(), self._finish())
            self._left.set()

    async def close(self) -> None:
        """
        End the node's tasks, and delete its row.
        """
        await self._unregister()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _unregister(self) -> None:
        row = self._let_go()
        if row is not None:
            try:
                async with asyncio.timeout(RELEASE_TIMEOUT):
                    await database_sync_to_async(registry.unregister)(row.pk)
            except Exception as error:  # the database is down: another node sweeps the row away
                logger.debug("A node's row could not be deleted: %r", error)

    def _let_go(self) -> NodeRow | None:
        """
        Forget the row, which is returned, and end its heartbeat.
        """
        row, self._row = self._row, None
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.close()
        return row

    # Orders

    def receive(self, message: dict[str, Any]) -> None:
        """
        Take a message of the channel layer with orders.
        """
        answers = [(key, answer) for key, what in orders.read(message) if (answer := self._take(key, what))]
        if answers:
            orders.send(answers)
        suspects = orders.principals(message)
        if suspects:
            now = self._loop.time()
            for key in suspects:
                forgotten = _remember(self._suspects, key, now)
                if forgotten is not None:
                    self._all_suspect_at = forgotten
            for held in list(self._held.values()):
                if held.principal in suspects:
                    self._obey(held, CHECK)

    def _take(self, key: int, what: str) -> str | None:
        """
        Take one order, or word of one, and return what to answer.
        """
        if what == ENDED:
            self._handovers.ended(key)
        elif what == RECEIVED:
            self._handovers.received(key)
        elif (held := self._held.get(key)) is not None:
            self._obey(held, what)
            return RECEIVED
        elif key in self._leaving or key in self._unreleased:
            return ENDED
        else:
            _remember(self._early, key, what)
        return None

    def _obey(self, held: Held, what: str) -> None:
        if what == CHECK:
            self._checking.doubt(held)
            self._checking.soon()
        elif what in REASONS:
            held.is_ordered = True
            held.stream.end(cast("Reason", what))

    # From time to time

    async def _run(self, beat: Beat) -> None:
        while True:
            await asyncio.sleep(TICK)
            if beat is not self._beat:
                return
            deliveries = self._deliveries()
            seen = await beat.look(
                awaited=list(self._handovers.keys),
                released=list(self._unreleased),
                deliveries=deliveries,
                channel=self._membership.channel,
            )
            if seen is None or beat is not self._beat:
                continue
            for key, delivery in deliveries.items() if seen.is_recorded else ():
                if (held := self._held.get(key)) is not None:
                    held.recorded = delivery.total
            self._note(seen)
            if not seen.is_alive:
                self._fall()
                return
            self._checking.soon()

    def _note(self, seen: Seen) -> None:
        self._unreleased.difference_update(seen.released)
        self._membership.forget(seen.dead)
        for key in seen.ended:
            self._handovers.ended(key)
        for key, what in seen.orders:
            if (held := self._held.get(key)) is not None:
                self._obey(held, what)
            elif key not in self._leaving and key not in self._unreleased:
                # It is let in, and on its way here; an order to check stands on its row no more.
                _remember(self._early, key, what)

    def _deliveries(self) -> dict[int, Delivery]:
        found: dict[int, Delivery] = {}
        now = self._loop.time()
        for key, held in self._held.items():
            stream = held.stream
            if stream.delivered != held.recorded and len(found) < orders.PORTION:
                found[key] = Delivery(stream.delivered, now - stream.delivered_at)
        return found

    def _fall(self) -> None:
        """
        The others took this node for dead, and may have let other streams in for its own.
        """
        logger.error("This process did not reach the database for long and was taken for dead; its streams end")
        self._let_go()
        for held in list(self._held.values()):
            held.stream.end("server_error")

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work, name=f"mcp_channels-node-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _remember(memory: dict[int, _T], key: int, value: _T) -> _T | None:
    """
    Keep a value, and return the oldest one if it had to go.
    """
    memory.pop(key, None)
    memory[key] = value
    return memory.pop(next(iter(memory))) if len(memory) > EARLY else None


def _admit(candidates: Sequence[Candidate]) -> Sequence[Outcome]:
    return admission.admit(candidates, default_cap=settings.max_listens_per_principal)


def _release(keys: Sequence[int]) -> list[None]:
    registry.release(keys)
    return [None] * len(keys)
