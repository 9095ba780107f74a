"""
A Django model as MCP resources (MCP 2026-07-28 server/resources).

One rule decides who may list, read and subscribe: the scope, then ``get_queryset``, then the permission classes.
"""

import copy
from collections.abc import Awaitable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import models
from django.http import HttpRequest
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from mcp_channels.auth.principals import Caller
from mcp_channels.models import Principal
from mcp_channels.resources import visible
from mcp_channels.resources.visible import Memory

MAX_URI_LENGTH: Final = 8192
"""The longest URI, in characters, that names a row."""

KNOWN_URIS: Final = 16_384
"""The most URIs whose reading is remembered, for each resource."""

KNOWN_LENGTH: Final = 200
"""The longest URI, in characters, whose reading is remembered."""

_PLAIN: Final = frozenset({int, str})
"""Types whose values a database takes and gives as they are."""


class ModelResource:
    """
    Declares how the rows of a model are served. Register it with ``@server.register(Model)``.
    """

    uri: ClassVar[str]
    """The URI template (RFC 6570); its variables are lookups that name one row: ``note://{pk}``."""

    scope: ClassVar[str | None] = None
    """The scope that a caller needs; None: none."""

    serializer_class: ClassVar[Any] = None
    """The DRF serializer that gives the content."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = ()
    """DRF permissions, asked for each object as for a GET."""

    related: ClassVar[Sequence[str]] = ()
    """Names of foreign keys and many-to-many fields whose target's changes are changes of the row."""

    name: ClassVar[str] = ""
    """The template's name; the model's verbose name if empty."""

    title: ClassVar[str | None] = None
    """The template's title for people."""

    description: ClassVar[str | None] = None
    """What the template's resources are."""

    mime_type: ClassVar[str] = "application/json"
    """The content's type."""

    def __init__(self, model: type[models.Model]) -> None:
        """
        Bind the declaration to ``model``.

        Raises:
            ImproperlyConfigured: the declaration can't serve this model.
        """
        self.model = model
        """The model whose rows are served."""
        self.template = self._parse_template()
        self.lookups: tuple[str, ...] = tuple(dict.fromkeys(self.template.variable_names))
        """The template's variables."""
        self._fields = {lookup: self._field(lookup) for lookup in self.lookups}
        self._read_known = lru_cache(KNOWN_URIS)(self._read)
        if self.serializer_class is None and type(self).get_content is ModelResource.get_content:
            raise ImproperlyConfigured(
                f"{type(self).__name__} needs a serializer_class, or a get_content() of its own."
            )

    # What a project overrides

    def get_queryset(self, principal: Principal) -> models.QuerySet[Any]:
        """
        The rows that ``principal`` may see; for an anonymous caller it has no ``pk``. All rows, unless overridden.
        """
        return self.model._default_manager.all()

    def can_subscribe(self, principal: Principal, uri: str) -> bool | Awaitable[bool]:
        """
        Whether ``principal`` may subscribe to a resource that it may read; it may be a coroutine function. Yes, unless
        overridden. What it raises is logged, and means no.
        """
        return True

    def get_name(self, instance: Any) -> str:
        """
        The name of one resource in ``resources/list``: ``str()`` of the row, unless overridden.
        """
        return str(instance)

    def get_content(self, instance: Any, caller: Caller) -> str | bytes:
        """
        The content of one resource: text, or bytes for binary content. The serializer's JSON, unless overridden.
        """
        serializer = self.serializer_class(instance, context={"request": self._request(caller), "view": self})
        return JSONRenderer().render(serializer.data).decode()

    # The rule

    def readable(self, caller: Caller, uris: Collection[str], *, memory: Memory | None = None) -> set[str]:
        """
        Those of ``uris`` that are rows which ``caller`` may read. Blocks; asks one query, whatever the number, or none
        where ``memory`` has the answer to the same.
        """
        wanted = self._candidates(caller, uris)
        if not wanted:
            return set()
        if self.permission_classes:
            rows = self._permitted(caller, self._rows(caller, wanted.values()))
            return {self.uri_of(row) for row in rows} & wanted.keys()
        values = list(wanted.values())
        if all(type(value) in _PLAIN for some in values for value in some):
            # Equal values of these types have equal URIs, so the rows needn't be written out.
            found = visible.among(self.get_queryset(caller.principal), self.lookups, values, memory=memory)
            return {uri for uri, some in wanted.items() if some in found}
        queryset = self._rows(caller, values)
        return {self._expand(row) for row in queryset.values_list(*self.lookups)} & wanted.keys()

    def matches(self, uri: str) -> bool:
        """
        Whether ``uri`` could name a row. Asks nobody.
        """
        return self._values(uri) is not None

    def absent(self, caller: Caller, uris: Collection[str]) -> set[str]:
        """
        Those of ``uris`` that name no row at all, though one could have them, and ``caller`` has the scope. Blocks.
        """
        wanted = self._candidates(caller, uris)
        if not wanted:
            return set()
        conditions = self._conditions(wanted.values())
        rows = self.model._base_manager.filter(**conditions).values_list(*self.lookups)
        return wanted.keys() - {self._expand(values) for values in rows}

    def find(self, caller: Caller, uri: str) -> Any | None:
        """
        The row at ``uri``, if ``caller`` may read it. Blocks.
        """
        wanted = self._candidates(caller, [uri])
        rows = self._permitted(caller, self._rows(caller, wanted.values())) if wanted else []
        return next((row for row in rows if self.uri_of(row) == uri), None)

    def page(self, caller: Caller, *, after: str | None, limit: int) -> tuple[list[Any], str | None]:
        """
        Rows that ``caller`` may read, in the order of their keys, and the key to go on after; None at the end. Blocks.

        Raises:
            ValueError: ``after`` isn't a key of this model.
        """
        if not self._may(caller):
            return [], None
        queryset = self.get_queryset(caller.principal).order_by("pk")
        if after is not None:
            key = self._clean(self.model._meta.pk, after)
            if key is None:
                raise ValueError("not a key")
            queryset = queryset.filter(pk__gt=key)
        rows = list(queryset[: limit + 1])
        last = str(rows[limit - 1].pk) if len(rows) > limit else None
        return self._permitted(caller, rows[:limit]), last

    def is_offered(self, caller: Caller) -> bool:
        """
        Whether ``caller`` may know of the template.
        """
        return caller.has_scope(self.scope)

    # URIs

    def uri_of(self, instance: Any) -> str:
        """
        The URI of a row.
        """
        return self._expand([_follow(instance, lookup) for lookup in self.lookups])

    def uris_of(self, queryset: models.QuerySet[Any]) -> list[str]:
        """
        The URIs of a queryset's rows. Blocks.
        """
        return [self._expand(values) for values in queryset.values_list(*self.lookups)]

    def _expand(self, values: Iterable[Any]) -> str:
        return self.template.expand({name: str(value) for name, value in zip(self.lookups, values, strict=True)})

    def _candidates(self, caller: Caller, uris: Collection[str]) -> dict[str, tuple[Any, ...]]:
        """
        The URIs that could name a row, each with its lookups' values.
        """
        if not self._may(caller):
            return {}
        found = {uri: self._values(uri) for uri in uris}
        return {uri: values for uri, values in found.items() if values is not None}

    def _values(self, uri: str) -> tuple[Any, ...] | None:
        return self._read_known(uri) if len(uri) <= KNOWN_LENGTH else self._read(uri)

    def _read(self, uri: str) -> tuple[Any, ...] | None:
        """
        The values of the lookups in a URI, or None if no row can have it. It knows no caller and no row.
        """
        captured = self.template.match(uri, max_uri_length=MAX_URI_LENGTH)
        if captured is None:
            return None
        values = tuple(self._clean(self._fields[lookup], captured.get(lookup)) for lookup in self.lookups)
        # A row answers to one spelling of its URI: note://01 is not note://1.
        return values if None not in values and self._expand(values) == uri else None

    @staticmethod
    def _clean(field: Any, value: object) -> Any | None:
        """
        The value as the field takes it, or None if no row can have it.
        """
        if not isinstance(value, str) or "\0" in value:
            return None
        try:
            value.encode()
            cleaned = field.to_python(value)
            field.run_validators(cleaned)
        except (ValidationError, ValueError, TypeError, OverflowError):
            return None
        return cleaned

    def _parse_template(self) -> UriTemplate:
        try:
            template = UriTemplate.parse(self.uri)
        except (AttributeError, InvalidUriTemplate) as error:
            raise ImproperlyConfigured(f"{type(self).__name__}.uri is not a URI template: {error}") from error
        if not template.variable_names:
            raise ImproperlyConfigured(f"{type(self).__name__}.uri names no variable, such as {{pk}}.")
        return template

    def _field(self, lookup: str) -> Any:
        options = self.model._meta
        field: Any = None
        for part in lookup.split("__"):
            try:
                field = options.pk if part == "pk" else options.get_field(part)
            except Exception as error:
                raise ImproperlyConfigured(
                    f"{type(self).__name__}.uri: {lookup!r} is no lookup of {self.model.__name__}."
                ) from error
            if field.remote_field is not None:
                options = field.remote_field.model._meta
        return getattr(field, "target_field", field)

    # Rows

    def _rows(self, caller: Caller, wanted: Iterable[tuple[Any, ...]]) -> models.QuerySet[Any]:
        return self.get_queryset(caller.principal).filter(**self._conditions(wanted))

    def _conditions(self, wanted: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
        # With several variables this finds more than was asked for; the callers compare whole URIs.
        return {
            f"{lookup}__in": set(values) for lookup, values in zip(self.lookups, zip(*wanted, strict=True), strict=True)
        }

    def _may(self, caller: Caller) -> bool:
        if not caller.has_scope(self.scope):
            return False
        if not self.permission_classes:
            return True
        request, view = self._request(caller), self._view(caller)
        return all(permission().has_permission(request, view) for permission in self.permission_classes)

    def _permitted(self, caller: Caller, rows: Iterable[Any]) -> list[Any]:
        if not self.permission_classes:
            return list(rows)
        request, view = self._request(caller), self._view(caller)
        permissions = [permission() for permission in self.permission_classes]
        return [row for row in rows if all(item.has_object_permission(request, view, row) for item in permissions)]

    def _request(self, caller: Caller) -> Request:
        request = HttpRequest() if caller.request is None else copy.copy(caller.request)
        # Permissions go by the method, and this is reading.
        request.method = "GET"
        if not hasattr(request, "user"):
            request.user = caller.principal.user or AnonymousUser()
        drf_request = Request(request)
        drf_request.user = request.user
        return drf_request

    def _view(self, caller: Caller) -> APIView:
        view = APIView()
        view.request = self._request(caller)
        view.args, view.kwargs = (), {}
        view.queryset = self.get_queryset(caller.principal)  # type: ignore[attr-defined]  # for DjangoModelPermissions
        return view


def _follow(instance: Any, lookup: str) -> Any:
    value = instance
    for part in lookup.split("__"):
        value = getattr(value, part, None)
    # A foreign key is written as its target's key.
    return value.pk if isinstance(value, models.Model) else value
