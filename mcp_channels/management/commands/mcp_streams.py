"""
Shows the live streams, and ends one.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mcp_channels.listen.orders import disconnect
from mcp_channels.models import LiveStream
from mcp_channels.publisher import publisher

TIMEOUT: Final = 10.0
"""Seconds to wait for the channel layer."""

HEADINGS: Final = (
    "id",
    "principal",
    "endpoint",
    "kinds",
    "URIs",
    "client",
    "address",
    "node",
    "opened",
    "last delivery",
    "delivered",
)


class Command(BaseCommand):
    """
    ``manage.py mcp_streams [--json] [--disconnect ID]``: see ``--help``.
    """

    help = "Show the listen streams that are open, on all nodes; or end one."

    def add_arguments(self, parser: CommandParser) -> None:
        """
        See BaseCommand.
        """
        parser.add_argument("--json", action="store_true", help="print one list of objects")
        parser.add_argument("--disconnect", type=int, metavar="ID", help="end the stream with this id")

    def handle(self, *args: Any, **options: Any) -> None:
        """
        See BaseCommand.
        """
        streams = LiveStream.objects.live().select_related("principal", "node").order_by("pk")
        if options["disconnect"] is not None:
            streams = streams.filter(pk=options["disconnect"])
        shown = list(streams)
        if options["disconnect"] is not None:
            # Somebody else may have ended it meanwhile.
            if disconnect(streams) == 0:
                raise CommandError(f"There is no live stream {options['disconnect']}.")
            if not publisher.flush(TIMEOUT):
                self.stderr.write("The channel layer did not take the order; the stream's node will find it.")
        if options["json"]:
            self.stdout.write(json.dumps([_as_object(stream) for stream in shown], indent=2))
        elif options["disconnect"] is not None:
            self.stdout.write(f"Disconnected stream {options['disconnect']}.")
        elif shown:
            self._write_table([HEADINGS, *map(_as_row, shown)])
        else:
            self.stdout.write("No stream is open.")

    def _write_table(self, rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.stdout.write("  ".join(cells).rstrip())


def _as_object(stream: LiveStream) -> dict[str, Any]:
    return {
        "id": stream.pk,
        "principal": None if stream.principal is None else stream.principal.name,
        "endpoint": stream.endpoint,
        "kinds": list(filter(None, stream.kinds.split(", "))),
        "uri_count": stream.uri_count,
        "client_name": stream.client_name,
        "client_version": stream.client_version,
        "address": stream.address,
        "node": str(stream.node),
        "opened_at": stream.opened_at.isoformat(),
        "last_delivery_at": None if stream.last_delivery_at is None else stream.last_delivery_at.isoformat(),
        "delivered": stream.delivered,
    }


def _as_row(stream: LiveStream) -> list[str]:
    cells = (
        stream.pk,
        stream.principal,
        stream.endpoint,
        stream.kinds,
        stream.uri_count,
        f"{stream.client_name} {stream.client_version}".strip(),
        stream.address,
        stream.node,
        stream.opened_at.isoformat(" ", "seconds"),
        stream.last_delivery_at and stream.last_delivery_at.isoformat(" ", "seconds"),
        stream.delivered,
    )
    return ["-" if cell in (None, "") else _printable(str(cell)) for cell in cells]


def _printable(text: str) -> str:
    """
    Text without what a terminal would obey: clients name themselves.
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
