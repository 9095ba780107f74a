"""
By what lists may be filtered: the names of query parameters, and the lookups that they stand for.
"""

from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from mcp_channels.rest.fields import Text
from mcp_channels.rest.serializers import LARGEST_KEY


class ScopeFilters(serializers.Serializer[Any]):
    """
    Of scopes.
    """

    name = Text(required=False)


class PrincipalFilters(serializers.Serializer[Any]):
    """
    Of principals.
    """

    name = Text(required=False)
    is_active = serializers.BooleanField(required=False)
    is_anonymous = serializers.BooleanField(required=False)
    scope = Text(source="scopes__name", required=False, help_text=_("Those who have this scope."))
    is_service = serializers.BooleanField(
        source="user__isnull", required=False, help_text=_("Those that stand for no user.")
    )
    is_listening = serializers.BooleanField(required=False, help_text=_("Those with open streams."))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """
        See Serializer.
        """
        if "is_listening" in attrs:
            attrs["live_streams__gt" if attrs.pop("is_listening") else "live_streams"] = 0
        return attrs


class TokenFilters(serializers.Serializer[Any]):
    """
    Of tokens.
    """

    principal = serializers.IntegerField(
        source="principal_id", min_value=1, max_value=LARGEST_KEY, required=False, help_text=_("A principal's id.")
    )
    prefix = Text(required=False)
    is_revoked = serializers.BooleanField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """
        See Serializer.
        """
        if "is_revoked" in attrs:
            attrs["revoked_at__isnull"] = not attrs.pop("is_revoked")
        return attrs


class StreamFilters(serializers.Serializer[Any]):
    """
    Of streams.
    """

    principal = serializers.IntegerField(
        source="principal_id", min_value=1, max_value=LARGEST_KEY, required=False, help_text=_("A principal's id.")
    )
    token = serializers.IntegerField(
        source="token_id", min_value=1, max_value=LARGEST_KEY, required=False, help_text=_("A token's id.")
    )
    endpoint = Text(required=False)
    address = Text(required=False)
    host = Text(source="node__host", required=False, help_text=_("The machine that holds it."))
