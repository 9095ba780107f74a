"""
Principals and scopes in the admin.
"""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.widgets import AdminTextareaWidget
from django.contrib.auth import get_user_model
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _, ngettext

from mcp_channels.admin.columns import ago, rows_of
from mcp_channels.admin.forms import PrincipalForm, PrincipalListForm, ScopeBoxes, ScopesField
from mcp_channels.admin.tokens import NewTokenInline, TokenInline
from mcp_channels.models import AccessToken, LiveStream, Principal, Scope

_ISSUED = "_mcp_channels_issued"


@admin.register(Scope)
class ScopeAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Scopes.
    """

    list_display = ("name", "description")
    search_fields = ("name", "description")


@admin.register(Principal)
class PrincipalAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Principals, with their tokens and the number of their streams. Caps and scopes may be changed in the list.
    """

    form = PrincipalForm
    list_display = ("name", "user", "is_active", "max_streams", "granted", "live_streams", "last_listened")
    # The list's form has the scopes too: Django allows no many-to-many field here.
    list_editable = ("is_active", "max_streams")
    list_filter = ("is_active", "is_anonymous", "scopes")
    list_select_related: ClassVar = ["user"]
    # A form may have 1,000 inputs (DATA_UPLOAD_MAX_NUMBER_FIELDS), and "show all" is a page too.
    list_per_page = 50
    list_max_show_all = 50
    search_fields = ("name", "notes")
    raw_id_fields = ("user",)
    readonly_fields = ("live_streams", "all_tokens", "last_listened_at", "created_at")
    inlines = (TokenInline, NewTokenInline)
    fieldsets = (
        (None, {"fields": ("name", "user", "is_active", "notes")}),
        (_("What it may do"), {"fields": ("scopes", "max_streams")}),
    )

    class Media:
        """
        The style sheet.
        """

        css = {"all": ("mcp_channels/admin.css",)}

    @admin.display(description=_("scopes"))
    def granted(self, principal: Principal) -> str:
        """
        The scopes, where they can't be changed.
        """
        return ", ".join(scope.name for scope in principal.scopes.all())

    @admin.display(description=_("live streams"), ordering="live_count")
    def live_streams(self, principal: Principal) -> str:
        """
        How many streams the principal has open, and the way to them.
        """
        count = getattr(principal, "live_count", 0)
        label = ngettext("%(count)d live stream", "%(count)d live streams", count) % {"count": count}
        url = rows_of(principal, LiveStream, site=self.admin_site.name)
        return format_html('<a href="{}" aria-label="{}: {}">{}</a>', url, principal.name, label, count)

    @admin.display(description=_("last listened"), ordering="last_listened_at")
    def last_listened(self, principal: Principal) -> str | None:
        """
        How long ago it last opened a stream.
        """
        return ago(principal.last_listened_at)

    @admin.display(description=_("tokens"))
    def all_tokens(self, principal: Principal) -> str:
        """
        The way to the list of the principal's tokens.
        """
        return format_html(
            '<a href="{}">{}</a>', rows_of(principal, AccessToken, site=self.admin_site.name), _("All tokens")
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Principal]:
        """
        With ``live_count``, the number of open streams.
        """
        streams = LiveStream.objects.live().filter(principal=OuterRef("pk")).order_by()
        count = Subquery(
            streams.values("principal").annotate(count=Count("pk")).values("count"), output_field=IntegerField()
        )
        principals: QuerySet[Principal] = super().get_queryset(request)
        return principals.prefetch_related("scopes").annotate(live_count=Coalesce(count, 0))

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """
        Names and notes, and what the project's users are called.
        """
        return (*self.search_fields, f"user__{get_user_model().USERNAME_FIELD}")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """
        What happened to a principal is shown once there is one.
        """
        shown = super().get_fieldsets(request, obj)
        return shown if obj is None else (*shown, (_("Activity"), {"fields": self.readonly_fields}))

    def get_readonly_fields(self, request: HttpRequest, obj: Principal | None = None) -> tuple[str, ...]:
        """
        Of anonymous callers nothing may be changed but the cap, and whether they may call at all.
        """
        fixed = ("name", "user", "notes", "scopes") if obj is not None and obj.is_anonymous else ()
        return (*fixed, *self.readonly_fields)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """
        Boxes to check, and little room for notes.
        """
        if db_field.name == "scopes":
            kwargs["widget"] = ScopeBoxes()
        elif db_field.name == "notes":
            kwargs["widget"] = AdminTextareaWidget(attrs={"rows": 3})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        """
        A principal that is to be added has no tokens yet. In a pop-up, which closes when it is saved, none can be made:
        its value would go unseen.
        """
        popup = IS_POPUP_VAR in request.GET or IS_POPUP_VAR in request.POST
        hidden: set[type] = {TokenInline} if obj is None else set()
        if popup:
            hidden.add(NewTokenInline)
        return [inline for inline in self.inlines if inline not in hidden]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """
        With who fills it in.
        """
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        form.actor = request.user
        return form

    def get_changelist_formset(self, request: HttpRequest, **kwargs: Any) -> Any:
        """
        With scopes in each row.
        """
        form = type("PrincipalListForm", (PrincipalListForm,), {"granted": ScopesField.of_all()})
        return forms.modelformset_factory(Principal, form, extra=0, fields=self.list_editable, **kwargs)

    def save_model(self, request: HttpRequest, obj: Principal, form: Any, change: bool) -> None:
        """
        Write what was changed: the rest of the row is written by those who listen.
        """
        if not change:
            obj.save()
            return
        names = {field.name for field in Principal._meta.concrete_fields}
        obj.save(update_fields=[name for name in form.changed_data if name in names])

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """
        Keep the new tokens for the answer.
        """
        super().save_formset(request, form, formset, change)
        setattr(request, _ISSUED, [*getattr(request, _ISSUED, ()), *getattr(formset, "issued", ())])

    def response_add(self, request: HttpRequest, obj: Principal, post_url_continue: str | None = None) -> HttpResponse:
        """
        See ``_answer``.
        """
        return self._answer(request, obj, super().response_add(request, obj, post_url_continue))

    def response_change(self, request: HttpRequest, obj: Principal) -> HttpResponse:
        """
        See ``_answer``.
        """
        return self._answer(request, obj, super().response_change(request, obj))

    def _answer(self, request: HttpRequest, principal: Principal, answer: HttpResponse) -> HttpResponse:
        """
        Show the new tokens, if there are any, and link to where the admin would have led.
        """
        issued = getattr(request, _ISSUED, ())
        if not issued:
            return answer
        page = reverse("admin:mcp_channels_principal_change", args=[principal.pk], current_app=self.admin_site.name)
        context = {
            **self.admin_site.each_context(request),
            "title": ngettext("New token", "New tokens", len(issued)),
            "opts": self.opts,
            "principal": principal,
            "issued": issued,
            "page": page,
            "following": answer.headers.get("Location", page),
            "media": self.media + forms.Media(js=["mcp_channels/tokens.js"]),
        }
        return TemplateResponse(request, "admin/mcp_channels/principal/issued.html", context)
