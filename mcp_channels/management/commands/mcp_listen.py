"""
Listens at an MCP endpoint, and prints what happens.
"""

import asyncio
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mcp_channels.client import (
    Acknowledged,
    Closed,
    Event,
    ListenClient,
    ListenError,
    Notification,
    Reconnecting,
    Relisten,
    Resynchronised,
)

ACK_TIMEOUT = 10.0
"""Seconds to wait for an acknowledgment."""

RELISTEN = Relisten(longest_delay=10.0, first=True)
"""Somebody watches, and would rather not wait for half a minute after the server is back."""

TIMED_OUT = 3
"""The exit status when ``--timeout`` is over."""

ENDED = 4
"""The exit status when the server ended the stream for good."""


class Command(BaseCommand):
    """
    ``manage.py mcp_listen URL``: see ``--help``.
    """

    help = "Listen for changes at an MCP endpoint. Exits 0 after --count, 3 after --timeout, 1 if refused, 4 if ended."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """
        See BaseCommand.
        """
        parser.add_argument("url", help="the endpoint, such as http://127.0.0.1:8000/mcp")
        parser.add_argument("--token", help="a bearer token")
        parser.add_argument("--tools", action="store_true", help="hear of changes of the list of tools")
        parser.add_argument("--prompts", action="store_true", help="hear of changes of the list of prompts")
        parser.add_argument("--resources", action="store_true", help="hear of changes of the list of resources")
        parser.add_argument(
            "--resource", action="append", default=[], metavar="URI", help="hear of changes of this one (repeat it)"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object a line")
        parser.add_argument("--count", type=int, metavar="N", help="stop after N notifications")
        parser.add_argument("--timeout", type=float, metavar="S", help="stop after S seconds")

    def handle(self, *args: Any, **options: Any) -> None:
        """
        See BaseCommand.
        """
        try:
            status = asyncio.run(self._listen(options))
        except ListenError as error:
            raise CommandError(f"The server refused: {error}") from None
        except ValueError as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            status = 130
        if status:
            sys.exit(status)

    async def _listen(self, options: dict[str, Any]) -> int:
        asked = {
            "tools_list_changed": options["tools"],
            "prompts_list_changed": options["prompts"],
            "resources_list_changed": options["resources"],
            "resource_subscriptions": options["resource"],
        }
        left = options["count"]
        try:
            async with (
                asyncio.timeout(options["timeout"]),
                ListenClient(options["url"], token=options["token"], relisten=RELISTEN) as client,
            ):
                subscription = await client.listen(asked, ack_timeout=ACK_TIMEOUT)
                async for event in subscription:
                    if isinstance(event, Closed) and subscription.error is not None and event.final:
                        continue
                    self.stdout.write(_as_json(event) if options["json"] else _as_text(event))
                    self.stdout.flush()
                    if isinstance(event, Notification) and left is not None:
                        left -= 1
                        if left <= 0:
                            return 0
        except ListenError:
            # One of them is a TimeoutError, and not the one of --timeout.
            raise
        except TimeoutError:
            return TIMED_OUT
        return ENDED


def _as_json(event: Event) -> str:
    return json.dumps(_as_dict(event))


def _as_dict(event: Event) -> dict[str, Any]:
    match event:
        case Acknowledged(honoured):
            return {"event": "acknowledged", "honoured": honoured}
        case Notification(method, params):
            return {"event": "notification", "method": method, "params": params}
        case Reconnecting(delay):
            return {"event": "reconnecting", "delay": delay}
        case Resynchronised(honoured):
            return {"event": "resynchronised", "honoured": honoured}
        case Closed(reason, graceful):
            return {"event": "closed", "reason": reason, "graceful": graceful}
    raise TypeError(f"Not an event of a listen stream: {event!r}")


def _as_text(event: Event) -> str:
    match event:
        case Acknowledged(honoured):
            return f"listening: {json.dumps(honoured)}"
        case Notification(method, params):
            return f"{method} {params.get('uri', '')}".rstrip()
        case Reconnecting(delay):
            return f"listening again in {delay:.1f} s"
        case Resynchronised(honoured):
            return f"listening again, read everything anew: {json.dumps(honoured)}"
        case Closed(reason, graceful):
            return f"{'ended by the server' if graceful else 'lost'}: {reason}"
    raise TypeError(f"Not an event of a listen stream: {event!r}")
