"""
A process that has imported what is slow, and forks itself for each process that a test starts.

It runs without the project's settings, so that a module which reads them fails here and can't be imported too early; it
has one thread, no event loop, and no sockets but the one it is told by. ``tests.support.forked`` is the other side.

``multiprocessing`` has a fork server too. Its children run no ``atexit``, which this package publishes by, and import
pytest again.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

REQUEST_SIZE = 128 * 1024
"""The most bytes of a request, which the system carries in one piece."""

NUMBER = struct.Struct("i")

# Other packages' modules that a server, a worker or a management command imports anyway, and that take long; each
# brings many others. Not those that read Django's settings (models, DRF's views), nor daphne.server, which installs
# Twisted's reactor.
PRELOADED = (
    *("asgiref.wsgi", "autobahn.twisted.websocket", "channels.auth", "channels_redis.core", "daphne.http_protocol"),
    *("django.core.asgi", "django.core.management", "django.core.servers.basehttp", "django.db.migrations.executor"),
    *("django.db.backends.postgresql.base", "django.db.backends.sqlite3.base", "django.test", "granian.cli"),
    *("httpx2", "hypercorn.run", "jwt", "mcp", "oauthlib.oauth2", "requests", "rest_framework.fields"),
    *("twisted.internet.asyncioreactor", "uvicorn.main", "uvicorn.protocols.http.auto"),
    *("uvicorn.protocols.websockets.auto", "yaml"),
)


def preload() -> None:
    """
    Import the modules. What they leave is taken out of the collector's sight, so that the pages stay shared.
    """
    for name in PRELOADED:
        importlib.import_module(name)
    assert "twisted.internet.reactor" not in sys.modules  # each process has its own
    assert threading.active_count() == 1  # no other is there after a fork
    gc.collect()
    gc.freeze()


def serve(control: socket.socket) -> dict[str, Any] | None:
    """
    Fork for each request, and tell how each process ended. Returns the request in the new process; None in this one,
    once the other side is gone and whatever it started was killed.
    """
    children: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number in children:
                poll.unregister(number)
                pid, status = children.pop(number)
                tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                os.close(number)
                continue
            data, handles, _, _ = socket.recv_fds(control, REQUEST_SIZE, 4)
            if not data:
                for handle in children:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                return None
            pid = os.fork()
            if pid == 0:
                control.detach()
                for target, handle in enumerate(handles[:3]):
                    os.dup2(handle, target)
                return json.loads(data)
            *streams, status = handles
            for stream in streams:
                os.close(stream)
            handle = os.pidfd_open(pid)
            children[handle] = (pid, status)
            poll.register(handle, select.POLLIN)
            tell(status, pid)


def tell(status: int, number: int) -> None:
    """
    Write a number into a process's pipe: its pid, and at its end its exit code; below zero it is the signal that ended
    it.
    """
    try:
        os.write(status, NUMBER.pack(number))
    except BrokenPipeError:
        pass  # nobody asks any more


def become(request: dict[str, Any]) -> None:
    """
    Make this process what an interpreter is that was started with the request's arguments, and run them.
    """
    os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    arguments = request["arguments"]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    # Ctrl-C on a terminal is for pytest, and for the processes that tests started.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    preload()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = serve(control)
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
