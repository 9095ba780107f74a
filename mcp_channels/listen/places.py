"""
The places of one process: how many responses it holds open at a time, on all of its event loops.

A listen stream has one until its body has ended, its closing frames included. A streamed ``tools/call`` and the stream
of a session of an older revision take one as well.
"""

import threading
from typing import Final

FULL: Final = "The server holds as many streams as it can"
"""What a client is told that gets no place."""


class Places:
    """
    Counts the places that are taken. Use the module's ``places``; all methods may be called from any thread.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """
        Forget who has one. A forked child starts with it.
        """
        self._lock = threading.Lock()
        self.taken = 0
        """Places that are taken."""

    def take(self, limit: int) -> bool:
        """
        Take a place, if fewer than ``limit`` are taken; whether there was one.
        """
        with self._lock:
            if self.taken >= limit:
                return False
            self.taken += 1
            return True

    def give_back(self) -> None:
        """
        Give one place back.
        """
        with self._lock:
            self.taken -= 1


places = Places()
"""This process's places."""
