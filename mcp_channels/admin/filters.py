"""
What narrows the admin's lists.
"""

from collections.abc import Iterable
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from mcp_channels.models import Principal

KINDS: Final[dict[str, Promise]] = {
    "toolsListChanged": _("tools"),
    "promptsListChanged": _("prompts"),
    "resourcesListChanged": _("resources"),
    "resourceSubscriptions": _("URIs"),
    "taskIds": _("tasks"),
}
"""The fields of a listen filter, in people's words."""


class PrincipalFilter(admin.SimpleListFilter):
    """
    The rows of one principal, for links (``columns.rows_of``): it doesn't list all principals there are.
    """

    title = _("principal")
    parameter_name = "principal"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        """
        The principal that is chosen, if one is.
        """
        value = request.GET.get(self.parameter_name)
        if value is None:
            return ()
        try:
            names = list(Principal.objects.filter(pk=value).order_by().values_list("name", flat=True))
        except (ValueError, ValidationError):
            raise IncorrectLookupParameters from None
        return ((value, names[0] if names else value),)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """
        See SimpleListFilter.
        """
        value = self.value()
        if value is None:
            return queryset
        # A number that is too large for the database finds nothing in a query of its own.
        return queryset.filter(principal__in=Principal.objects.filter(pk=value).order_by())


class KindFilter(admin.SimpleListFilter):
    """
    Streams that listen to one kind of change.
    """

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        """
        See SimpleListFilter.
        """
        return KINDS.items()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """
        See SimpleListFilter.
        """
        kind = self.value()
        return queryset.filter(kinds__contains=kind) if kind in KINDS else queryset


class StateFilter(admin.SimpleListFilter):
    """
    Tokens that may be used, that are too old, or that were revoked.
    """

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        """
        See SimpleListFilter.
        """
        return (("good", _("good")), ("expired", _("expired")), ("revoked", _("revoked")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """
        See SimpleListFilter.
        """
        expired = Q(expires_at__lte=timezone.now())
        match self.value():
            case "good":
                return queryset.filter(revoked_at=None).exclude(expired)
            case "expired":
                return queryset.filter(expired, revoked_at=None)
            case "revoked":
                return queryset.exclude(revoked_at=None)
            case _:
                return queryset
