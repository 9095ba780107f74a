"""
Who holds which URI of a legacy session, without I/O.
"""

from collections.abc import Hashable, Iterable


class References:
    """
    The holders of each URI, and whether the server has been asked to watch it in the session that stands.
    """

    def __init__(self) -> None:
        self._holders: dict[str, dict[Hashable, None]] = {}
        self._subscribed: set[str] = set()

    def __len__(self) -> int:
        return len(self._holders)

    def acquire(self, holder: Hashable, uri: str) -> bool:
        """
        Hold a URI, and say whether it must be subscribed to.
        """
        self._holders.setdefault(uri, {})[holder] = None
        is_needed = uri not in self._subscribed
        self._subscribed.add(uri)
        return is_needed

    def refused(self, uri: str) -> None:
        """
        Subscribing to a URI failed; who holds it goes on to do so.
        """
        self._subscribed.discard(uri)

    def held(self, holder: Hashable) -> list[str]:
        """
        The URIs that one holds.
        """
        return [uri for uri, holders in self._holders.items() if holder in holders]

    def release(self, holder: Hashable, uri: str) -> bool:
        """
        Hold a URI no longer, and say whether it must be unsubscribed from.
        """
        holders = self._holders.get(uri, {})
        if holder not in holders:
            return False
        del holders[holder]
        if holders:
            return False
        del self._holders[uri]
        was_subscribed = uri in self._subscribed
        self._subscribed.discard(uri)
        return was_subscribed

    def lose_session(self) -> None:
        """
        The session is gone, and its subscriptions with it.
        """
        self._subscribed.clear()

    def missing(self, holders: Iterable[Hashable]) -> list[str]:
        """
        The URIs of some holders that the session that stands does not watch.
        """
        wanted = set(holders)
        return [
            uri for uri, those in self._holders.items() if uri not in self._subscribed and not wanted.isdisjoint(those)
        ]

    def subscribing(self, uri: str) -> None:
        """
        A URI is about to be subscribed to again.
        """
        self._subscribed.add(uri)
