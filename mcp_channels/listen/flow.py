"""
What a stream knows of the socket behind its writes.
"""

from typing import Final

PIECE: Final = 16 * 1024
"""Bytes of one write where nothing is known of the socket."""


class Flow:
    """
    A socket of which nothing is known: writes wait for it by themselves, or not at all.
    """

    __slots__ = ()

    piece: int = PIECE
    """
    The most bytes for one write, one frame excepted. What a client that stops reading costs in memory is a multiple of
    it, and so is what a slow one has to read before it hears of the newest change.
    """

    async def wait(self) -> None:
        """
        Return when the socket takes more, or is gone.
        """

    def taken(self) -> int | None:
        """
        How many bytes the client's side has taken so far; None where there is no way to know.
        """
        return None
