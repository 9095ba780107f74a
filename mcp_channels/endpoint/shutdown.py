"""
Graceful ends when the server is told to stop.

Daphne cancels its applications, and what a stream writes while it is cancelled is delivered. uvicorn and granian tell
the application nothing, and wait for its streams: there the handler of SIGTERM and SIGINT that the server installed is
wrapped, to mark the drain and then call the one that was there. hypercorn's workers get no signal, and cancel after
some seconds; but the object behind ``send`` knows of the event that they wait for.
"""

import asyncio
import signal
import threading
from typing import Any
from weakref import WeakKeyDictionary

from mcp_channels.endpoint.upstream import end_sessions
from mcp_channels.listen.hub import drain_all

SIGNALS = (signal.SIGTERM, signal.SIGINT)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at who handles the signals: to ask for each request costs more than its headers."""

_looked_at: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
_wrapped: dict[int, Any] = {}
_workers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


def drain() -> None:
    """
    End every stream of this process, from any thread or from a signal handler.
    """
    drain_all()
    end_sessions()


def watch_for_shutdown(send: Any) -> None:
    """
    See to it that a shutdown of the server behind ``send`` drains this process. To be called for each request; the
    first does the work.
    """
    _watch_worker(send)
    _listen_for_signals()


def _watch_worker(send: Any) -> None:
    loop = asyncio.get_running_loop()
    terminated = getattr(getattr(getattr(send, "__self__", None), "context", None), "terminated", None)
    if terminated is None or loop in _workers:
        return

    async def wait() -> None:
        await terminated.wait()
        drain()

    _workers[loop] = loop.create_task(wait(), name="mcp_channels-shutdown")


def _listen_for_signals() -> None:
    # Handlers can be set in the main thread alone; granian's and uvicorn's loops run there.
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    now = loop.time()
    if now - _looked_at.get(loop, float("-inf")) < LOOK_INTERVAL:
        return
    _looked_at[loop] = now
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is _wrapped.get(number):
            continue
        if _is_twisted(handler):
            continue
        loop_handle = _loop_handler(loop, number)
        if loop_handle is not None:
            _wrap_loop_handler(loop, number, loop_handle)
        elif callable(handler) and handler is not signal.default_int_handler:
            _wrap_handler(number, handler)


def _wrap_handler(number: int, inner: Any) -> None:
    def handler(signum: int, frame: Any) -> None:
        drain()
        inner(signum, frame)

    _wrapped[number] = handler
    signal.signal(number, handler)


def _wrap_loop_handler(loop: asyncio.AbstractEventLoop, number: int, handle: Any) -> None:
    callback, args = handle._callback, handle._args or ()  # noqa: SLF001  # see _loop_handler
    if getattr(callback, "drains", False):
        return

    def handler() -> None:
        drain()
        callback(*args)

    handler.drains = True  # type: ignore[attr-defined]
    loop.add_signal_handler(number, handler)


def _loop_handler(loop: asyncio.AbstractEventLoop, number: int) -> Any | None:
    """
    What asyncio's own loop runs on this signal; there is no public way to ask.
    """
    handlers = getattr(loop, "_signal_handlers", None)
    handle = handlers.get(number) if isinstance(handlers, dict) else None
    return handle if hasattr(handle, "_callback") and hasattr(handle, "_args") else None


def _is_twisted(handler: Any) -> bool:
    module = getattr(handler, "__module__", "") or ""
    return module.startswith("twisted.")
