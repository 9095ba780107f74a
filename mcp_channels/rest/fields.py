"""
How texts, users and scopes stand in JSON.
"""

from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError as ModelError
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from mcp_channels.models import Scope

MAX_ENTRIES: Final = 1000
"""The most scopes, streams or URIs of one request."""

MAX_NAME: Final = 190
"""The longest name, in characters, of a scope."""

MAX_USERNAME: Final = 254
"""The longest name, in characters, that a user is looked for by."""


class Text(serializers.CharField):
    """
    Text as it was given, and nothing that would have to be made one.
    """

    def to_internal_value(self, data: Any) -> str:
        """
        See Field.
        """
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class UserField(Text):
    """
    A Django user, by what they sign in with.
    """

    default_error_messages = {"unknown": _("There is no such user.")}

    def to_internal_value(self, data: Any) -> Any:
        """
        See Field.
        """
        name = _username.run_validation(data)
        users = get_user_model()
        try:
            return users._default_manager.get_by_natural_key(name)
        except (users.DoesNotExist, TypeError, ValueError, ModelError):
            self.fail("unknown")

    def to_representation(self, value: Any) -> str:
        """
        See Field.
        """
        return str(value.get_username())


class ScopesField(serializers.ListField):
    """
    Scopes, by name; all must exist.
    """

    child = Text(max_length=MAX_NAME)
    default_error_messages = {"unknown": _("There is no such scope: %(names)s")}

    def to_internal_value(self, data: Any) -> Any:
        """
        See Field.
        """
        # Before anything is looked up; DRF would count what comes of it.
        if isinstance(data, list) and len(data) > MAX_ENTRIES:
            self.fail("max_length", max_length=MAX_ENTRIES)
        names = set(super().to_internal_value(data))
        scopes = list(Scope.objects.filter(name__in=names))
        unknown = names - {scope.name for scope in scopes}
        if unknown:
            raise ValidationError(
                self.error_messages["unknown"] % {"names": ", ".join(sorted(unknown))}, code="unknown"
            )
        return scopes

    def to_representation(self, value: Any) -> list[str]:
        """
        See Field.
        """
        return sorted(scope.name for scope in value.all())


_username = Text(max_length=MAX_USERNAME)
