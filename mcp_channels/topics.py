"""
What can change, and the channel-layer group that carries it.

A topic belongs to the project, not to one endpoint. Its group's name is short and safe for every layer, since a URI is
hashed; the message carries the topic itself, and receivers compare that, so that a collision of hashes cannot
misdeliver.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

Kind = Literal["tools", "prompts", "resources", "resource", "everything"]
"""What a topic is about: one of the three lists, one resource, or, to publish alone, everything."""

KINDS: Final[frozenset[str]] = frozenset({"tools", "prompts", "resources", "resource"})

EVERY_HUB: Final = "mcp_channels.hubs"
"""The group that every hub is in: it carries batches, and the word that everything may have changed."""

CHANGED: Final = "mcp_channels.changed"
"""The ``type`` of a message that names changed topics."""

RESYNC: Final = "mcp_channels.resync"
"""The ``type`` of a message that says: any topic may have changed."""

SEQUENCE: Final = "mcp_channels.sequence"
"""The ``type`` of a message that only says which of a publisher's messages was the last."""

ORDERS: Final = "mcp_channels.orders"
"""The ``type`` of a message that tells the holders of streams what to do with them."""

LONGEST_MESSAGE: Final = 32 * 1024 * 1024
"""The most characters of topics in a message that is read."""

MOST_TOPICS: Final = 10_000
"""The most topics in a message that is read; more than this release puts in one."""

KNOWN_LENGTH: Final = 200
"""The longest URI, in characters, whose topic is kept to be used again."""

BATCH_LIMIT: Final = 500
"""The most topics in one message."""

BATCH_BYTES: Final = 128 * 1024
"""The most characters of URIs in one message; a single longer URI travels alone."""


class MalformedError(ValueError):
    """
    A message of the channel layer is none of this project's, or was damaged. Its text says how, and quotes nothing.
    """


class Topic(NamedTuple):
    """
    One thing that can change: a list, or the resource whose URI is ``key``.
    """

    kind: Kind
    key: str = ""

    @property
    def group(self) -> str:
        """
        The name of the channel-layer group that carries this topic: ASCII, at most 60 characters.
        """
        if self.kind != "resource":
            return f"mcp_channels.{self.kind}"
        # A URI from the wire may hold a lone surrogate, which plain UTF-8 refuses to encode.
        digest = blake2b(self.key.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
        return f"mcp_channels.resource.{digest}"


TOOLS: Final = Topic("tools")
"""The list of tools."""

PROMPTS: Final = Topic("prompts")
"""The list of prompts."""

RESOURCES: Final = Topic("resources")
"""The list of resources."""


EVERYTHING: Final = Topic("everything")
"""Any topic: to be published where there are too many to name."""


def resource(uri: str) -> Topic:
    """
    The topic of the resource at ``uri``, compared exactly, byte for byte.
    """
    return _resource(uri) if len(uri) <= KNOWN_LENGTH else Topic("resource", uri)


@lru_cache(16_384)
def _resource(uri: str) -> Topic:
    return Topic("resource", uri)


def changed_message(topics: Iterable[Topic]) -> dict[str, object]:
    """
    The channel-layer message that says that ``topics`` changed.
    """
    # As JSON, since some layers' encodings refuse a lone surrogate, and one bad URI must not hold up the others.
    return {"type": CHANGED, "topics": json.dumps([list(topic) for topic in topics])}


def read_changed(message: Mapping[str, object]) -> Iterator[Topic]:
    """
    The topics that a message names; those of a kind that is unknown to this release are skipped.

    Raises:
        MalformedError: the message has no list of topics, or one that is far too long.
    """
    text = message.get("topics")
    if not isinstance(text, str) or len(text) > LONGEST_MESSAGE:
        raise MalformedError("its topics are no text, or one that is too long")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedError("its topics are no JSON") from None
    if not isinstance(entries, list) or len(entries) > MOST_TOPICS:
        raise MalformedError("its topics are no list, or one that is too long")
    for entry in entries:
        match entry:
            case [str(kind), str(key)] if kind in KINDS:
                yield Topic(kind, key)  # type: ignore[arg-type]  # the guard above has narrowed it
            case _:
                continue


def batches(topics: Sequence[Topic]) -> Iterator[list[Topic]]:
    """
    Split ``topics`` into lists that each fit one message.
    """
    batch: list[Topic] = []
    size = 0
    for topic in topics:
        if batch and (len(batch) >= BATCH_LIMIT or size + len(topic.key) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(topic)
        size += len(topic.key)
    if batch:
        yield batch
