"""
The whole thing at work, on a database of its own.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

import httpx2
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from example_project.notes.models import Note
from mcp_channels.client import Acknowledged, ListenClient, ListenError, Notification
from mcp_channels.models import AccessToken, Principal, Scope

ONCE = 5
"""The notifications after which ``--once`` stops."""

PASSWORD = "demo"  # noqa: S105  # of a database that lives as long as the demo

START_TIMEOUT = 30.0
_DIRECTORY = "MCP_CHANNELS_DEMO_DIRECTORY"


class Command(BaseCommand):
    """
    ``manage.py demo``: see ``--help``.
    """

    help = "Serve a note on Daphne, edit it every second, and print each notification that a listening client gets."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """
        See BaseCommand.
        """
        parser.add_argument("--once", action="store_true", help=f"stop after {ONCE} notifications")
        parser.add_argument("--port", type=int, help="the port to serve at; 8000, or a free one, if not given")

    def handle(self, *args: Any, **options: Any) -> None:
        """
        See BaseCommand.
        """
        # Ended by whatever means, it leaves no process and no file.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if _DIRECTORY not in os.environ:
            # The settings of this process name the project's own database, which the demo must leave alone.
            sys.exit(_again_on_a_fresh_database())
        port = options["port"] or _port()
        note, token = self._fill()
        with contextlib.suppress(KeyboardInterrupt), _daphne(port):
            self._say(port, note)
            try:
                asyncio.run(self._run(f"http://127.0.0.1:{port}/mcp", token, note, once=options["once"]))
            except* CommandError as group:
                raise CommandError(str(group.exceptions[0])) from None

    def _fill(self) -> tuple[Note, str]:
        call_command("migrate", verbosity=0)
        user = get_user_model().objects.create_superuser("demo", "demo@example.com", PASSWORD)
        principal = Principal.objects.create(name="demo", user=user)
        principal.scopes.set(Scope.named(["notes:read", "notes:write"]))
        note = Note.objects.create(owner=user, title="A note", body="Edit me in the admin.")
        return note, AccessToken.objects.issue(principal, label="demo")[1]

    def _say(self, port: int, note: Note) -> None:
        self.stdout.write(f"MCP endpoint  http://127.0.0.1:{port}/mcp")
        self.stdout.write(f"Admin         http://127.0.0.1:{port}/admin/  (user demo, password {PASSWORD})")
        self.stdout.write(f"Resource      note://{note.pk}, edited every second; stop with Ctrl-C\n\n")
        self.stdout.flush()

    async def _run(self, url: str, token: str, note: Note, *, once: bool) -> None:
        async with asyncio.TaskGroup() as group:
            acknowledged = asyncio.Event()
            editing = group.create_task(_edit(url, token, note.pk, after=acknowledged))
            await self._listen(url, token, note, acknowledged, once=once)
            editing.cancel()

    async def _listen(self, url: str, token: str, note: Note, acknowledged: asyncio.Event, *, once: bool) -> None:
        asked = {"resources_list_changed": True, "resource_subscriptions": [f"note://{note.pk}"]}
        seen = 0
        try:
            async with ListenClient(url, token=token) as client:
                async for event in await client.listen(asked):
                    match event:
                        case Acknowledged(honoured):
                            acknowledged.set()
                            self.stdout.write(f"listening     {dict(honoured)}")
                        case Notification(method, params):
                            seen += 1
                            self.stdout.write(f"heard         {method} {params.get('uri', '')}".rstrip())
                        case _:
                            self.stdout.write(str(event))
                    self.stdout.flush()
                    if once and seen >= ONCE:
                        return
        except ListenError as error:
            raise CommandError(f"The endpoint could not be listened at: {error}") from None


async def _edit(url: str, token: str, pk: int, *, after: asyncio.Event) -> None:
    await after.wait()
    # The layer is in memory, so the note must be saved in the server's process: by a tool, as an assistant would.
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        number = 0
        while True:
            number += 1
            await client.call_tool("update_note", {"id": pk, "body": f"Edited {number} times."})
            await asyncio.sleep(1)


def _again_on_a_fresh_database() -> int:
    with tempfile.TemporaryDirectory(prefix="mcp-channels-demo-") as directory:
        env = {
            **os.environ,
            _DIRECTORY: directory,
            "DATABASE_URL": f"sqlite:///{directory}/demo.sqlite3",
            "DEBUG": "1",
        }
        for name in ("REDIS_URL", "CHANNEL_LAYER_BACKEND", "CHANNEL_LAYER_CONFIG"):
            env.pop(name, None)
        process = subprocess.Popen([sys.executable, *sys.argv], env=env, start_new_session=True)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def _daphne(port: int) -> Any:
    with tempfile.TemporaryFile() as log:
        command = [
            sys.executable,
            "-m",
            "daphne",
            "-b",
            "127.0.0.1",
            "-p",
            str(port),
            "example_project.asgi:application",
        ]
        # In a session of its own, as a terminal sends Ctrl-C to all of one: the clients leave before the server ends.
        process = subprocess.Popen(command, cwd=settings.BASE_DIR, stdout=log, stderr=log, start_new_session=True)
        try:
            asyncio.run(_wait_for(port, process))
            yield
        except TimeoutError:
            log.seek(0)
            raise CommandError(f"Daphne did not start:\n{log.read().decode(errors='replace')}") from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                # Who asks twice need not wait longer, but must not leave the server behind.
                signal.signal(number, signal.SIG_IGN)
            process.terminate()
            process.wait()


async def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(START_TIMEOUT):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                if process.poll() is not None:
                    raise TimeoutError from None
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def _port() -> int:
    for wanted in (8000, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", wanted))
                port: int = probe.getsockname()[1]
                return port
    raise CommandError("There is no free port.")
