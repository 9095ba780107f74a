"""
From model signals to notifications.

Signals are connected model by model: a receiver for every sender would keep Django from its fast deletes everywhere.
"""

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, DatabaseError, models, router
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete, pre_save

from mcp_channels import topics
from mcp_channels.notify import publish
from mcp_channels.resources.model import ModelResource

logger = logging.getLogger("mcp_channels.resources")

_watched: dict[type[models.Model], list[ModelResource]] = {}
_OLD = "_mcp_channels_old"
_RAW = "_mcp_channels_raw"


def watch(resource: ModelResource) -> None:
    """
    Notify of changes of ``resource``'s rows, and of what it declares as related, from now on.
    """
    # A row may be saved through a subclass, or through any of a concrete model's proxies.
    concrete = resource.model._meta.concrete_model
    for model in apps.get_models():
        if not issubclass(model, resource.model) and model._meta.concrete_model is not concrete:
            continue
        known = _watched.setdefault(model, [])
        if not known:
            _connect(model)
        known.append(resource)
    for name in resource.related:
        _watch_related(resource, name)


def resources_of(model: type[models.Model]) -> list[ModelResource]:
    """
    The resources that serve rows of ``model``.
    """
    return _watched.get(model, [])


def notify_objects(
    objects: models.QuerySet[Any] | Iterable[models.Model], *, listed: bool = False, using: str | None = None
) -> None:
    """
    Notify of rows that changed without a signal: after ``QuerySet.update()``, ``bulk_create()`` or raw SQL.

    Waits for the commit, as ``notify_resource_updated`` does.

    Args:
        objects: a queryset or instances, of one model or several.
        listed: whether rows were added or removed, so that the list of resources changed too.
        using: the database alias; None: the queryset's, or the default one.
    """
    changed: dict[topics.Topic, None] = {}
    if isinstance(objects, models.QuerySet):
        # Where reads go to a replica, the change and its transaction are elsewhere.
        chosen: str | None = vars(objects)["_db"]
        using = using or chosen or router.db_for_write(objects.model)
        for resource in resources_of(objects.model):
            uris = resource.uris_of(objects.using(using))
            changed.update(dict.fromkeys(map(topics.resource, uris)))
    else:
        for instance in objects:
            changed.update(dict.fromkeys(_topics(instance)))
    if listed:
        changed[topics.RESOURCES] = None
    publish(*changed, using=using)


def _harmless(receiver: Callable[..., None]) -> Callable[..., None]:
    """
    Keep a receiver's trouble (a project's own ``__str__``, say) from the save that it was told of.
    """

    @functools.wraps(receiver)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            receiver(*args, **kwargs)
        except DatabaseError:  # it may have broken the saver's transaction, who must know
            raise
        except Exception:
            logger.exception("A change could not be notified of")

    return guarded


def _connect(model: type[models.Model]) -> None:
    uid = f"mcp_channels.{model._meta.label}"
    post_save.connect(_saved, sender=model, dispatch_uid=uid)
    post_delete.connect(_deleted, sender=model, dispatch_uid=uid)
    pre_delete.connect(_remember, sender=model, dispatch_uid=uid)
    pre_save.connect(_remember_stored, sender=model, dispatch_uid=uid)
    for field in model._meta.many_to_many:
        m2m_changed.connect(_m2m_changed, sender=field.remote_field.through, dispatch_uid="mcp_channels")


def _topics(instance: models.Model) -> list[topics.Topic]:
    return [topics.resource(resource.uri_of(instance)) for resource in resources_of(type(instance))]


@_harmless
def _remember_stored(sender: type[models.Model], instance: Any, raw: bool, using: str, **kwargs: Any) -> None:
    # A URI made of other fields than the key can change; those who watch the old one must hear of it.
    resources = [item for item in resources_of(sender) if item.lookups != ("pk",)]
    if raw or not resources or instance._state.adding or instance.pk is None:
        return
    stored = sender._base_manager.using(using).filter(pk=instance.pk)
    setattr(instance, _OLD, [topics.resource(uri) for resource in resources for uri in resource.uris_of(stored)])


@_harmless
def _remember(sender: type[models.Model], instance: Any, **kwargs: Any) -> None:
    # After the deletion the row's relations may be gone.
    setattr(instance, _OLD, _topics(instance))


@_harmless
def _saved(sender: type[models.Model], instance: Any, created: bool, raw: bool, using: str, **kwargs: Any) -> None:
    if raw:
        # A fixture's row; its many-to-many relations are set next, on this very instance, and are as raw.
        setattr(instance, _RAW, True)
        return
    current = _topics(instance)
    old = instance.__dict__.pop(_OLD, [])
    moved = any(topic not in current for topic in old)
    changed = dict.fromkeys([*current, *old, *([topics.RESOURCES] if created or moved else [])])
    publish(*changed, using=using)


@_harmless
def _deleted(sender: type[models.Model], instance: Any, using: str, **kwargs: Any) -> None:
    publish(*dict.fromkeys([*instance.__dict__.pop(_OLD, []), topics.RESOURCES]), using=using)


@_harmless
def _m2m_changed(
    sender: type[models.Model],
    instance: Any,
    action: str,
    reverse: bool,
    model: type[models.Model],
    pk_set: set[Any] | None,
    using: str,
    **kwargs: Any,
) -> None:
    if hasattr(instance, _RAW):
        return
    if not reverse:
        if action in ("post_add", "post_remove", "post_clear"):
            publish(*_topics(instance), using=using)
    elif action in ("post_add", "post_remove") and pk_set:
        notify_objects(model._base_manager.using(using).filter(pk__in=pk_set), using=using)
    elif action == "pre_clear":
        # After the clearing nobody knows which rows it concerned.
        through = [field for field in model._meta.many_to_many if field.remote_field.through is sender]
        for field in through:
            notify_objects(model._base_manager.using(using).filter(**{field.name: instance}), using=using)


def _watch_related(resource: ModelResource, name: str) -> None:
    field: Any = resource.model._meta.get_field(name)
    target = field.related_model

    @_harmless
    def changed(sender: Any, instance: Any, using: str = DEFAULT_DB_ALIAS, raw: bool = False, **kwargs: Any) -> None:
        if raw:
            return
        alias = using or router.db_for_read(resource.model)
        rows = resource.model._base_manager.using(alias).filter(**{name: instance})
        publish(*(topics.resource(uri) for uri in resource.uris_of(rows)), using=alias)

    uid = f"mcp_channels.{resource.model._meta.label}.{name}.{id(resource)}"
    for model in [found for found in apps.get_models() if issubclass(found, target)]:
        # pre_delete: when the target is gone, nobody knows any more which rows pointed at it.
        for signal in (post_save, pre_delete):
            signal.connect(changed, sender=model, weak=False, dispatch_uid=uid)
