"""
Publishes notifications from the command line.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mcp_channels import topics
from mcp_channels.notify import publish
from mcp_channels.publisher import publisher

TIMEOUT = 10.0
"""Seconds to wait for the channel layer."""


class Command(BaseCommand):
    """
    ``manage.py mcp_notify tools|prompts|resources`` or ``mcp_notify resource URI``.
    """

    help = "Tell every listening client, in every process, that something changed."

    def add_arguments(self, parser: CommandParser) -> None:
        """
        See BaseCommand.
        """
        parser.add_argument("kind", choices=["tools", "prompts", "resources", "resource"])
        parser.add_argument("uri", nargs="?", help="with 'resource': which one")

    def handle(self, *args: Any, **options: Any) -> None:
        """
        See BaseCommand.
        """
        kind, uri = options["kind"], options["uri"]
        if (kind == "resource") != (uri is not None):
            raise CommandError("A URI goes with 'resource', and with nothing else.")
        publish(topics.Topic(kind, uri or ""), immediately=True)
        if not publisher.flush(TIMEOUT):
            raise CommandError("The channel layer did not take the notification.")
