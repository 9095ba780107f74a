"""
A project's own word on who may subscribe to what: ``can_subscribe(principal, uri)``, of an endpoint or of a resource.

It is asked about what the caller may read. It may be synchronous (it then runs where Django's synchronous code does) or
not; and one that fails lets nobody in.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from asgiref.sync import iscoroutinefunction
from channels.db import database_sync_to_async

from mcp_channels.models import Principal
from mcp_channels.resources.model import ModelResource

CanSubscribe = Callable[[Principal, str], bool | Awaitable[bool]]
"""Whether a principal may subscribe to a URI."""

logger = logging.getLogger("mcp_channels.resources")


async def allowed(
    hook: CanSubscribe | None, resources: Sequence[ModelResource], principal: Principal, uris: Collection[str]
) -> set[str]:
    """
    Those of ``uris`` that ``hook``, and the resources' own, let ``principal`` subscribe to.
    """
    left = set(uris)
    for resource in resources:
        if left and type(resource).can_subscribe is not ModelResource.can_subscribe:
            concerned = {uri for uri in left if resource.matches(uri)}
            left -= concerned - await _ask(resource.can_subscribe, principal, concerned)
    return await _ask(hook, principal, left) if hook is not None and left else left


async def _ask(hook: CanSubscribe, principal: Principal, uris: Collection[str]) -> set[str]:
    asked = list(uris)
    if iscoroutinefunction(hook):
        answers = _ask_all(hook, principal, asked)
    else:
        answers = await database_sync_to_async(_ask_all)(hook, principal, asked)
    awaited = [_wait_for(answer) for answer in answers if inspect.isawaitable(answer)]
    results = iter(await asyncio.gather(*awaited, return_exceptions=True))
    answers = [next(results) if inspect.isawaitable(answer) else answer for answer in answers]
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures:
        logger.error(
            "can_subscribe failed for %d of %d URIs; they are left out", len(failures), len(asked), exc_info=failures[0]
        )
    return {uri for uri, answer in zip(asked, answers, strict=True) if answer is True}


def _ask_all(hook: CanSubscribe, principal: Principal, uris: Sequence[str]) -> list[object]:
    """
    For each URI: True or False, what is to be waited for, or the exception that came of it.
    """
    answers: list[object] = []
    for uri in uris:
        try:
            answer = hook(principal, uri)
            # To look at an answer may be work of its own: a queryset asks the database.
            answers.append(answer if inspect.isawaitable(answer) else _judge(answer))
        except Exception as error:  # a project's own rule may fail; it is logged by the caller
            answers.append(error)
    return answers


async def _wait_for(answer: Awaitable[object]) -> bool:
    return _judge(await answer)


def _judge(answer: object) -> bool:
    # These are true, and no answer: somebody forgot an ``await``, or a ``raise``.
    if inspect.isawaitable(answer) or inspect.isasyncgen(answer) or isinstance(answer, BaseException):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("can_subscribe must return a boolean, or something that gives one when it is awaited")
    return bool(answer)
