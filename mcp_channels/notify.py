"""
How a project says that something changed.

Each function returns at once, and never raises because a layer is broken. Inside ``transaction.atomic()`` it waits for
the commit, once per topic and transaction, and vanishes with a rollback, of the transaction or of its savepoint alone.
"""

from typing import Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from mcp_channels import topics
from mcp_channels.publisher import publisher
from mcp_channels.topics import Topic


def notify_tools_changed(*, using: str | None = None, immediately: bool = False) -> None:
    """
    Say that the list of tools changed. ``using`` and ``immediately`` are as in ``notify_resource_updated``.
    """
    publish(topics.TOOLS, using=using, immediately=immediately)


def notify_prompts_changed(*, using: str | None = None, immediately: bool = False) -> None:
    """
    Say that the list of prompts changed. ``using`` and ``immediately`` are as in ``notify_resource_updated``.
    """
    publish(topics.PROMPTS, using=using, immediately=immediately)


def notify_resources_changed(*, using: str | None = None, immediately: bool = False) -> None:
    """
    Say that the list of resources changed. ``using`` and ``immediately`` are as in ``notify_resource_updated``.
    """
    publish(topics.RESOURCES, using=using, immediately=immediately)


def notify_resource_updated(uri: str, *, using: str | None = None, immediately: bool = False) -> None:
    """
    Say that the resource at ``uri`` changed. Streams that asked for exactly this URI, on any endpoint, hear of it.

    Args:
        uri: the resource's URI; it is compared byte for byte.
        using: the database alias whose transaction is waited for; None is the default database.
        immediately: publish now, whatever transaction is open.
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri must be a str, not {type(uri).__name__}")
    publish(topics.resource(uri), using=using, immediately=immediately)


async def anotify_tools_changed(*, using: str | None = None, immediately: bool = False) -> None:
    """
    See notify_tools_changed().
    """
    await _apublish(topics.TOOLS, using=using, immediately=immediately)


async def anotify_prompts_changed(*, using: str | None = None, immediately: bool = False) -> None:
    """
    See notify_prompts_changed().
    """
    await _apublish(topics.PROMPTS, using=using, immediately=immediately)


async def anotify_resources_changed(*, using: str | None = None, immediately: bool = False) -> None:
    """
    See notify_resources_changed().
    """
    await _apublish(topics.RESOURCES, using=using, immediately=immediately)


async def anotify_resource_updated(uri: str, *, using: str | None = None, immediately: bool = False) -> None:
    """
    See notify_resource_updated().
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri must be a str, not {type(uri).__name__}")
    await _apublish(topics.resource(uri), using=using, immediately=immediately)


def publish(*changed: Topic, using: str | None = None, immediately: bool = False) -> None:
    """
    Publish topics when the transaction of database ``using`` commits, or now where none is open.
    """
    connection = connections[using or DEFAULT_DB_ALIAS]
    # Without autocommit and outside atomic() Django runs no commit hooks, so there is nothing to wait for.
    if immediately or not connection.in_atomic_block:
        publisher.publish(changed)
        return
    hooks = _hooks(connection)
    # A block that makes no savepoint has None for one; it can't be rolled back by itself.
    savepoints = frozenset(sid for sid in connection.savepoint_ids if sid is not None)
    for topic in changed:
        known = hooks.setdefault(topic, [])
        # A hook that survives whatever rollback this one would survive makes this one superfluous.
        if not any(hook.savepoints <= savepoints and not hook.has_run for hook in known):
            hook = _Hook(topic, savepoints)
            known.append(hook)
            transaction.on_commit(hook.run, using=connection.alias, robust=True)


async def _apublish(topic: Topic, *, using: str | None, immediately: bool) -> None:
    if immediately:
        publisher.publish((topic,))
        return
    # A transaction, if one is open around this code, belongs to the thread that Django's sync code runs on.
    await sync_to_async(publish)(topic, using=using)


class _Hook:
    """
    The commit hook of one topic, and the savepoints that it stands under.
    """

    __slots__ = ("has_run", "savepoints", "topic")

    def __init__(self, topic: Topic, savepoints: frozenset[str]) -> None:
        self.topic = topic
        self.savepoints = savepoints
        # Django's captureOnCommitCallbacks() runs a hook and leaves it in the list.
        self.has_run = False

    def run(self) -> None:
        self.has_run = True
        publisher.publish((self.topic,))


def _hooks(connection: Any) -> dict[Topic, list[_Hook]]:
    """
    The hooks that wait for the commit of ``connection``, by topic.
    """
    # Django replaces the list at a commit and at any rollback, and only appends to it in between. So what was
    # remembered holds for as long as the list is the same.
    waiting = connection.run_on_commit
    remembered: tuple[list[Any], dict[Topic, list[_Hook]]] | None = getattr(connection, _ATTRIBUTE, None)
    if remembered is not None and remembered[0] is waiting:
        return remembered[1]
    hooks: dict[Topic, list[_Hook]] = {}
    for _, function, *_ in waiting:
        hook = getattr(function, "__self__", None)
        if isinstance(hook, _Hook):
            hooks.setdefault(hook.topic, []).append(hook)
    setattr(connection, _ATTRIBUTE, (waiting, hooks))
    return hooks


_ATTRIBUTE = "_mcp_channels_hooks"
