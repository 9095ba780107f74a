"""
Processes that take no time to start: forked from one that has imported what is slow. See ``tests.support.forkserver``.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.forkserver import NUMBER, REQUEST_SIZE

ROOT = Path(__file__).resolve().parents[2]
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
READ_AT_START = ("PYTHON", "LANG", "LC_")


class ForkServer:
    """
    The process that forks, for as long as this one lives.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        command = [sys.executable, "-m", "tests.support.forkserver", str(number)]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=env, pass_fds=[number], stdin=DEVNULL, stdout=DEVNULL
            )

    def start(self, request: Mapping[str, object], handles: Sequence[int]) -> None:
        """
        Start a process with these as its standard streams, and the end of a pipe to tell its pid and its exit code.
        """
        data = json.dumps(request).encode()
        assert len(data) < REQUEST_SIZE
        socket.send_fds(self._control, [data], handles)

    def stop(self) -> None:
        self._control.close()
        self._process.wait()


_servers: dict[tuple, ForkServer] = {}
_servers_lock = threading.Lock()


def _server(env: Mapping[str, str]) -> ForkServer:
    """
    The one for processes with this environment: what an interpreter reads of it at its start must be the same. A fork
    of pytest needs its own.
    """
    read = {name: value for name, value in env.items() if name.startswith(READ_AT_START)}
    key = (os.getpid(), *sorted(read.items()))
    with _servers_lock:
        if key not in _servers:
            others = {n: value for n, value in os.environ.items() if not n.startswith((*READ_AT_START, "DJANGO"))}
            _servers[key] = server = ForkServer({**others, **read})
            atexit.register(server.stop)
        return _servers[key]


class Process:
    """
    ``subprocess.Popen([sys.executable, *arguments], cwd=ROOT)`` in short: ``arguments`` begin with ``-m`` or with a
    script. The standard streams are files, ``PIPE`` (text), or None for nowhere.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int | IO | None = None,
        stdout: int | IO | None = None,
        stderr: int | IO | None = None,
    ) -> None:
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        status, reported = os.pipe()
        theirs = [reported]
        self._status = status
        weakref.finalize(self, os.close, status)
        try:
            self.stdin, read = self._stream(stdin, "w", theirs)
            self.stdout, written = self._stream(stdout, "r", theirs)
            self.stderr, errors = self._stream(stderr, "r", theirs)
            request = {"arguments": [*arguments], "env": dict(env)}
            _server(env).start(request, [read, written, errors, reported])
        finally:
            for handle in theirs:
                os.close(handle)
        self.pid = self._told()

    def _stream(self, given: int | IO | None, mode: str, theirs: list[int]) -> tuple[IO | None, int]:
        """
        This side of a stream, if it is a pipe, and the process's. Those that were opened here are added to ``theirs``.
        """
        if given == PIPE:
            ends = os.pipe()
            ours, other = ends if mode == "r" else ends[::-1]
            theirs.append(other)
            return os.fdopen(ours, mode), other
        if given is None:
            theirs.append(os.open(os.devnull, os.O_RDWR))
            return None, theirs[-1]
        return None, given if isinstance(given, int) else given.fileno()

    def poll(self) -> int | None:
        """
        The exit code of a process that has ended; below zero it is the signal that ended it.
        """
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """
        Wait for the end. Raises ``subprocess.TimeoutExpired`` after so many seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                return None
        with self._lock:
            if self.returncode is None:
                self.returncode = self._told()
        return self.returncode

    def _told(self) -> int:
        data = os.read(self._status, NUMBER.size)
        if not data:
            raise RuntimeError("The process that forks has ended")
        return NUMBER.unpack(data)[0]

    def send_signal(self, number: int) -> None:
        """
        Send a signal, if there is somebody to send it to.
        """
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it ended in between

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(arguments: Sequence[str], *, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """
    ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`` in short.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = Process(arguments, env=env, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(process.args, code, stdout.read(), stderr.read())
