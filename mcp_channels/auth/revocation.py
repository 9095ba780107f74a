"""
Who loses the right to listen stops listening: changes of principals, their users, tokens and scopes are looked at
again by the nodes that hold their streams, when the transaction commits.

What sends no signal (``QuerySet.update()``) is found by the nodes' own look, every ``CHECK_INTERVAL``.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_save, pre_delete

from mcp_channels.auth.principals import client_name
from mcp_channels.listen import orders
from mcp_channels.models import AccessToken, LiveStream, Principal, Scope


def connect() -> None:
    """
    Begin to look at changes. To be called when all models are loaded.
    """
    _connect(post_save, _principal_saved, Principal)
    _connect(pre_delete, _principal_deleted, Principal)
    _connect(post_save, _token_saved, AccessToken)
    _connect(pre_delete, _token_deleted, AccessToken)
    _connect(post_save, _scope_changed, Scope)
    _connect(pre_delete, _scope_changed, Scope)
    _connect(m2m_changed, _principal_scopes_changed, Principal.scopes.through)
    _connect(m2m_changed, _token_scopes_changed, AccessToken.scopes.through)
    _connect(post_save, _user_saved, get_user_model())
    for model in _credentials():
        _connect(post_save, _credential_changed, model)
        _connect(pre_delete, _credential_changed, model)


def _credentials() -> Iterator[type[Model]]:
    """
    Other packages' models of credentials; each has a ``user``.
    """
    if apps.is_installed("rest_framework.authtoken"):
        yield import_module("rest_framework.authtoken.models").Token
    if apps.is_installed("oauth2_provider"):
        yield import_module("oauth2_provider.models").get_access_token_model()


def _connect(signal: Any, receiver: Callable[..., None], model: type[Model]) -> None:
    # A row that is saved as another model's, a proxy's or an heir's, says so in that one's name.
    for sender in (item for item in apps.get_models(include_auto_created=True) if issubclass(item, model)):
        signal.connect(receiver, sender=sender, dispatch_uid=f"{__name__}.{receiver.__name__}.{sender._meta.label}")


def _check(principals: Iterable[int | None]) -> None:
    orders.check({key for key in principals if key is not None})


def _principal_saved(*, instance: Principal, created: bool, raw: bool, using: str, **kwargs: Any) -> None:
    if created or raw:
        return
    if not instance.is_active:
        streams = LiveStream.objects.filter(principal=instance.pk)
        # As for a check, no stream's row is locked before the commit.
        transaction.on_commit(lambda: orders.disconnect(streams), using=using, robust=True)
    # And those that are being let in just now, whose rows aren't there yet.
    _check([instance.pk])


def _principal_deleted(*, instance: Principal, **kwargs: Any) -> None:
    orders.disconnect(LiveStream.objects.filter(principal=instance.pk))


def _token_saved(*, instance: AccessToken, created: bool, raw: bool, **kwargs: Any) -> None:
    if not created and not raw:
        _check([instance.principal_id])


def _token_deleted(*, instance: AccessToken, **kwargs: Any) -> None:
    _check([instance.principal_id])


def _scope_changed(*, instance: Scope, created: bool = False, raw: bool = False, **kwargs: Any) -> None:
    if not created and not raw:
        _check(instance.principals.values_list("pk", flat=True))


def _principal_scopes_changed(
    *, instance: Model, action: str, reverse: bool, pk_set: set[int] | None, **kwargs: Any
) -> None:
    if action not in ("post_remove", "pre_clear", "post_clear"):
        return
    if not reverse:
        _check([instance.pk])
    elif pk_set is not None:
        _check(pk_set)
    elif isinstance(instance, Scope) and action == "pre_clear":
        _check(instance.principals.values_list("pk", flat=True))


def _token_scopes_changed(*, instance: Model, action: str, pk_set: set[int] | None, **kwargs: Any) -> None:
    if action not in ("post_remove", "pre_clear", "post_clear"):
        return
    if isinstance(instance, AccessToken):
        _check([instance.principal_id])
    elif isinstance(instance, Scope) and (pk_set is not None or action == "pre_clear"):
        tokens = instance.tokens.all() if pk_set is None else AccessToken.objects.filter(pk__in=pk_set)
        _check(tokens.values_list("principal", flat=True))


def _user_saved(
    *, instance: Model, created: bool, raw: bool, update_fields: frozenset[str] | None, **kwargs: Any
) -> None:
    # A log-in saves the user for a field of its own.
    if created or raw or (update_fields is not None and "is_active" not in update_fields):
        return
    _check(Principal.objects.filter(user=instance.pk).values_list("pk", flat=True))


def _credential_changed(*, instance: Any, created: bool = False, raw: bool = False, **kwargs: Any) -> None:
    if created or raw:
        return
    if instance.user_id is not None:
        _check(Principal.objects.filter(user=instance.user_id).values_list("pk", flat=True))
    elif client := getattr(getattr(instance, "application", None), "client_id", None):
        _check(Principal.objects.filter(name=client_name(client)).values_list("pk", flat=True))
