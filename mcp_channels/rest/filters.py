"""
How lists are searched, filtered and put in order, by query parameters.
"""

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _
from rest_framework import filters, serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

MAX_TERMS: Final = 10
"""The most words of one search: each is a condition of the query, and SQLite refuses a deep one."""

_TYPES: Final = {serializers.BooleanField: "boolean", serializers.IntegerField: "integer"}


class Search(filters.SearchFilter):
    """
    As DRF's, with a limit.
    """

    def get_search_terms(self, request: Request) -> list[str]:
        """
        See SearchFilter.

        Raises:
            ValidationError: there are too many.
        """
        terms = super().get_search_terms(request)
        if len(terms) > MAX_TERMS:
            raise ValidationError({self.search_param: _("At most %(count)d words.") % {"count": MAX_TERMS}})
        return terms


class Ordering(filters.OrderingFilter):
    """
    As DRF's; rows that are equal keep one order, so that none is on two pages or on none.
    """

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> Sequence[str]:
        """
        See OrderingFilter.
        """
        return [*(super().get_ordering(request, queryset, view) or ()), "pk"]


class FieldFilter(filters.BaseFilterBackend):
    """
    Filters by what the view's ``filter_serializer`` reads from the query: each field's ``source`` is a lookup.
    """

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        """
        See BaseFilterBackend.

        Raises:
            ValidationError: a value that is none of its field's.
        """
        # A plain dict: to a QueryDict, a boolean that isn't there is false.
        given = view.filter_serializer(data=request.query_params.dict())
        given.is_valid(raise_exception=True)
        return queryset.filter(**given.validated_data)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """
        See BaseFilterBackend.
        """
        return [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": str(field.help_text or ""),
                "schema": {"type": _TYPES.get(type(field), "string")},
            }
            for name, field in view.filter_serializer().fields.items()
        ]
