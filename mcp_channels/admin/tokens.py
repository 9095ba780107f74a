"""
Tokens in the admin. A value is shown on one page, the answer to the request that made it: it never goes by a message
(which may be kept in the session or in a cookie), nor by an address, nor into the history.
"""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _, ngettext

from mcp_channels.admin import history
from mcp_channels.admin.filters import PrincipalFilter, StateFilter
from mcp_channels.admin.forms import NewTokenForm, NewTokenFormSet, TokenForm, TokenFormSet
from mcp_channels.models import AccessToken, Principal


class _TokenColumns:
    """
    What both pages say of a token.
    """

    @admin.display(description=_("narrowed to"))
    def narrowed_to(self, token: AccessToken) -> str:
        """
        The scopes that narrow a token; empty where none do.
        """
        if not token.is_narrowed:
            return ""
        return ", ".join(scope.name for scope in token.scopes.all()) or "∅"

    @admin.display(description=_("state"))
    def state(self, token: AccessToken) -> Any:
        """
        Whether a token may be used.
        """
        if token.revoked_at is not None:
            return _("revoked")
        return _("good") if token.is_good(timezone.now()) else _("expired")


class TokenInline(_TokenColumns, admin.TabularInline):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    A principal's tokens, to be revoked.
    """

    model = AccessToken
    form = TokenForm
    formset = TokenFormSet
    verbose_name_plural = _("tokens")
    show_change_link = True
    can_delete = False
    extra = 0
    readonly_fields = ("label", "narrowed_to", "created_at", "expires_at", "last_used_at", "state", "revoked_at")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """
        Without the box that revokes, where the user may not.
        """
        columns = self.readonly_fields
        return (*columns, "revoke") if self.has_change_permission(request, obj) else columns

    def get_queryset(self, request: HttpRequest) -> QuerySet[AccessToken]:
        """
        See InlineModelAdmin.
        """
        tokens: QuerySet[AccessToken] = super().get_queryset(request)
        return tokens.prefetch_related("scopes")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody: ``NewTokenInline`` adds.
        """
        return False


class NewTokenInline(admin.StackedInline):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Tokens to be made with the principal.
    """

    model = AccessToken
    form = NewTokenForm
    formset = NewTokenFormSet
    verbose_name = _("token")
    verbose_name_plural = _("new token")
    fields = (("label", "expires_at", "scopes"),)
    can_delete = False
    extra = 1

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """
        With who fills it in.
        """
        formset: Any = super().get_formset(request, obj, **kwargs)
        formset.actor = request.user
        return formset

    def get_queryset(self, request: HttpRequest) -> QuerySet[AccessToken]:
        """
        None: what is there is ``TokenInline``'s.
        """
        tokens: QuerySet[AccessToken] = super().get_queryset(request)
        return tokens.none()

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody: there is nothing to see.
        """
        return False

    has_change_permission = has_view_permission
    has_delete_permission = has_view_permission

    def has_add_permission(self, request: HttpRequest, obj: Principal | None = None) -> bool:
        """
        Those who may add tokens, but for anonymous callers, who show none.
        """
        return not (obj is not None and obj.is_anonymous) and bool(super().has_add_permission(request, obj))


@admin.register(AccessToken)
class AccessTokenAdmin(_TokenColumns, admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Tokens, to look at and to revoke; a principal's page makes them.
    """

    form = TokenForm
    list_display = (
        "__str__",
        "principal",
        "label",
        "narrowed_to",
        "state",
        "expires_at",
        "last_used_at",
        "revoked_at",
    )
    list_select_related: ClassVar = ["principal"]
    list_filter = (PrincipalFilter, StateFilter, "is_narrowed", "expires_at")
    search_fields = ("prefix", "label", "principal__name")
    readonly_fields = ("prefix", "principal", "narrowed_to", "state", "created_at", "expires_at", "last_used_at")
    actions = ("revoke_selected",)

    class Media:
        """
        The style sheet.
        """

        css = {"all": ("mcp_channels/admin.css",)}

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """
        The label and the end of a token may be changed; nothing could be made longer or wider.
        """
        columns = (*self.readonly_fields, "revoked_at")
        return ("label", *columns, "revoke") if self.has_change_permission(request, obj) else ("label", *columns)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """
        See ModelAdmin.
        """
        return (*self.readonly_fields, "revoked_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[AccessToken]:
        """
        See ModelAdmin.
        """
        tokens: QuerySet[AccessToken] = super().get_queryset(request)
        return tokens.prefetch_related("scopes")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody: a principal's page makes tokens, and shows their values.
        """
        return False

    def save_model(self, request: HttpRequest, obj: AccessToken, form: Any, change: bool) -> None:
        """
        Write what was changed.
        """
        form.save()

    @admin.action(description=_("Revoke selected tokens"), permissions=["change"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[AccessToken]) -> None:
        """
        Revoke tokens, each by a save of its own: what hangs on a token hears of it by the model's signals.
        """
        tokens = list(queryset.filter(revoked_at=None))
        for token in tokens:
            token.revoked_at = timezone.now()
            token.save(update_fields=["revoked_at"])
        history.note(request, tokens, "Revoked.")
        message = ngettext("Revoked %(count)d token.", "Revoked %(count)d tokens.", len(tokens))
        self.message_user(request, message % {"count": len(tokens)}, messages.SUCCESS)
