"""
The example project as an outsider uses it: an environment, its servers, and its command line.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support import forked
from tests.support.processes import Server, Worker

LAYERS = {
    "memory": {},
    "pubsub": {"CHANNEL_LAYER_BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"},
    "core": {"CHANNEL_LAYER_BACKEND": "channels_redis.core.RedisChannelLayer"},
}
"""The environment of a project on each kind of channel layer."""


class Project:
    """
    The example project on one database and one layer.
    """

    def __init__(self, directory: Path, *, template: Path | None = None, **env: str) -> None:
        self.directory = directory
        self.env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "DATABASE_URL": f"sqlite:///{directory / 'db.sqlite3'}",
            "PYTHONWARNINGS": "default",
            **env,
        }
        self._running: list[Server | Worker] = []
        self._worker: Worker | None = None
        if template is not None and "DATABASE_URL" not in env:
            shutil.copy(template, directory / "db.sqlite3")
        else:
            self.manage("migrate", "-v0")

    def manage(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess:
        """
        Run a management command, and return what it printed.
        """
        done = forked.run(["manage.py", *arguments], env=self.env, timeout=timeout)
        if check and done.returncode:
            raise RuntimeError(f"manage.py {' '.join(arguments)}: {done.stderr}")
        return done

    def serve(self, kind: str, **options: object) -> Server:
        """
        Start a server.
        """
        log = self.directory / f"{kind}-{len(self._running)}.log"
        server = Server(kind, env=self.env, log=log, **options)
        self._running.append(server)
        return server

    @property
    def worker(self) -> Worker:
        """
        Another process of this project.
        """
        if self._worker is None:
            self._worker = self.new_worker()
        return self._worker

    def new_worker(self) -> Worker:
        worker = Worker(self.env, self.directory / "worker.log")
        self._running.append(worker)
        return worker

    def token(self, name: str = "alice", scopes: tuple[str, ...] = ("notes:read", "notes:write"), **options) -> str:
        """
        Make a principal with these scopes, and a token of it. ``user`` names its Django user, who is made too;
        ``max_streams`` is its cap, which is out of the way unless given.
        """
        return self.worker.run(
            """
from datetime import timedelta
user = User.objects.get_or_create(username=username)[0] if username else None
principal, _ = models.Principal.objects.get_or_create(name=name, defaults={"user": user})
principal.max_streams = max_streams
principal.save()
principal.scopes.set(models.Scope.named(scopes))
lifetime = timedelta(seconds=ttl) if ttl else None
result = models.AccessToken.objects.issue(principal, lifetime=lifetime)[1]
""",
            name=name,
            scopes=scopes,
            username=options.get("user"),
            max_streams=options.get("max_streams", 10_000),
            ttl=options.get("ttl"),
        )

    def note(self, **fields: object) -> int:
        """
        Write a note, shared unless said otherwise, and return its key.
        """
        fields = {"title": "a note", "shared": True, **fields}
        return self.worker.run("result = Note.objects.create(**fields).pk", fields=fields)

    def save(self, pk: int) -> None:
        """
        Save a note in the other process.
        """
        self.worker.run("note = Note.objects.get(pk=pk); note.body += '.'; note.save()", pk=pk)

    def stop(self) -> None:
        """
        End the processes, all at once.
        """
        for running in self._running:
            running.terminate()
        for running in reversed(self._running):
            running.stop()
        self._running.clear()
