"""
Principals, scopes and tokens in the admin.
"""

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest

from mcp_channels.models import AccessToken, Principal, Scope


@admin.register(Scope)
class ScopeAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Scopes.
    """

    list_display = ("name", "description")
    search_fields = ("name",)


@admin.register(Principal)
class PrincipalAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Principals.
    """

    list_display = ("name", "user", "is_active", "max_streams")
    list_filter = ("is_active", "scopes")
    search_fields = ("name",)
    filter_horizontal = ("scopes",)
    raw_id_fields = ("user",)


@admin.register(AccessToken)
class AccessTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Tokens, to look at and to revoke; ``manage.py mcp_token`` makes them.
    """

    list_display = ("prefix", "principal", "label", "expires_at", "last_used_at", "revoked_at")
    list_select_related: ClassVar = ["principal"]
    readonly_fields = ("prefix", "principal", "created_at", "last_used_at")
    fields = ("prefix", "principal", "label", "created_at", "expires_at", "last_used_at", "revoked_at")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody: a token's value could not be shown here.
        """
        return False
