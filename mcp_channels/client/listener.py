"""
Listening that lasts: a stream that is lost is asked for again, with growing and scattered delays.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import httpx2

from mcp_channels.client import wire
from mcp_channels.client.events import Acknowledged, Closed, Event, Reconnecting, Resynchronised
from mcp_channels.client.wire import ListenRefusedError

FIRST_DELAY: Final = 0.5
"""Seconds before the first new attempt; doubled with each, up to ``LONGEST_DELAY``."""

LONGEST_DELAY: Final = 30.0

HEALTHY_AFTER: Final = 10.0
"""Seconds that a stream must have lasted for the delays to start anew."""

ACK_TIMEOUT: Final = 10.0
"""Seconds to wait for an acknowledgment."""

SILENCE_TIMEOUT: Final = 120.0
"""Seconds without a byte, keep-alives included, after which a connection counts as lost."""

FINAL_REASONS: Final = frozenset({"superseded"})
"""Endings after which listening again would do harm: two clients would end each other's streams for ever."""


class Listener:
    """
    Listens at one endpoint, with one filter.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        resource_subscriptions: Sequence[str] = (),
    ) -> None:
        """
        Args:
            url: the MCP endpoint.
            token: a bearer token.
            tools: hear of changes of the list of tools.
            prompts: hear of changes of the list of prompts.
            resources: hear of changes of the list of resources.
            resource_subscriptions: hear of changes of the resources at these URIs.
        """
        self.url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._filter: dict[str, Any] = {
            field: True
            for field, wanted in (
                ("toolsListChanged", tools),
                ("promptsListChanged", prompts),
                ("resourcesListChanged", resources),
            )
            if wanted
        }
        if resource_subscriptions:
            self._filter["resourceSubscriptions"] = list(resource_subscriptions)

    async def events(self) -> AsyncIterator[Event]:
        """
        Yield what happens, for as long as the caller asks. It ends after a ``Closed`` that is final.

        Raises:
            ListenRefusedError: the server refused, and would refuse again.
        """
        timeout = httpx2.Timeout(ACK_TIMEOUT, read=SILENCE_TIMEOUT)
        loop = asyncio.get_running_loop()
        failures, opened_before = 0, False
        async with httpx2.AsyncClient(headers=self._headers, timeout=timeout) as http:
            while True:
                started, retry_after = loop.time(), 0.0
                try:
                    async with aclosing(wire.listen(http, self.url, self._filter, ack_timeout=ACK_TIMEOUT)) as stream:  # type: ignore[type-var]
                        async for event in stream:
                            if isinstance(event, Acknowledged):
                                yield _again(event.honoured) if opened_before else event
                                opened_before = True
                            else:
                                yield event
                                if isinstance(event, Closed) and event.graceful and event.reason in FINAL_REASONS:
                                    return
                except ListenRefusedError as error:
                    if not error.is_passing:
                        raise
                    retry_after = error.retry_after or 0.0
                    yield Closed(str(error), graceful=False)
                failures = 0 if loop.time() - started >= HEALTHY_AFTER else failures + 1
                delay = retry_after + _delay(failures)
                yield Reconnecting(round(delay, 3))
                await asyncio.sleep(delay)


def _again(honoured: Mapping[str, Any]) -> Resynchronised:
    return Resynchronised(honoured)


def _delay(failures: int) -> float:
    ceiling: float = min(FIRST_DELAY * 2 ** min(max(failures - 1, 0), 16), LONGEST_DELAY)
    # Scattered after the ceiling, so that clients that were cut together don't come back together.
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
