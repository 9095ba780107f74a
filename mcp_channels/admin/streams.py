"""
Live streams in the admin: to look at and to end.
"""

from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _, ngettext

from mcp_channels.admin import history
from mcp_channels.admin.columns import ago
from mcp_channels.admin.filters import KINDS, KindFilter, PrincipalFilter
from mcp_channels.listen.orders import disconnect
from mcp_channels.models import LiveStream, LiveStreamQuerySet


@admin.register(LiveStream)
class LiveStreamAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    The open streams of all nodes. Nobody adds, changes or deletes a row: a stream is ended by telling its node.
    """

    list_display = (
        "__str__",
        "of_principal",
        "endpoint",
        "listens_to",
        "client",
        "address",
        "node",
        "opened",
        "last_delivery",
        "delivered",
    )
    list_select_related: ClassVar = ["principal", "node"]
    list_filter = (
        PrincipalFilter,
        "endpoint",
        KindFilter,
        ("node", admin.RelatedOnlyFieldListFilter),
        "principal__is_anonymous",
    )
    search_fields = (
        "principal__name",
        "client_name",
        "client_version",
        "address",
        "endpoint",
        "node__host",
        "token__prefix",
        "token__label",
    )
    search_help_text = _("Principal, client, address, endpoint, host, or a token's label or beginning")
    fields = (
        "of_principal",
        "token",
        "endpoint",
        "listens_to",
        "client",
        "address",
        "node",
        "opened_at",
        "last_delivery_at",
        "delivered",
    )
    actions = ("disconnect_selected",)

    class Media:
        """
        The style sheet.
        """

        css = {"all": ("mcp_channels/admin.css",)}

    @admin.display(description=_("principal"), ordering="principal__name")
    def of_principal(self, stream: LiveStream) -> str | None:
        """
        The principal, and the way to it.
        """
        if stream.principal is None:
            return None
        url = reverse(
            "admin:mcp_channels_principal_change", args=[stream.principal.pk], current_app=self.admin_site.name
        )
        return format_html('<a href="{}">{}</a>', url, stream.principal)

    @admin.display(description=_("listens to"), ordering="uri_count")
    def listens_to(self, stream: LiveStream) -> str:
        """
        The kinds of change, and how many URIs.
        """
        words = []
        for kind in filter(None, stream.kinds.split(", ")):
            word = str(KINDS.get(kind, kind))
            if kind == "resourceSubscriptions":
                word = ngettext("%(count)d URI", "%(count)d URIs", stream.uri_count) % {"count": stream.uri_count}
            words.append(word)
        return ", ".join(words)

    @admin.display(description=_("client"), ordering="client_name")
    def client(self, stream: LiveStream) -> str:
        """
        The client's name and version, as it gives them.
        """
        return f"{stream.client_name} {stream.client_version}".strip()

    @admin.display(description=_("opened"), ordering="opened_at")
    def opened(self, stream: LiveStream) -> str | None:
        """
        How long ago it was opened.
        """
        return ago(stream.opened_at)

    @admin.display(description=_("last delivery"), ordering="last_delivery_at")
    def last_delivery(self, stream: LiveStream) -> str | None:
        """
        How long ago it was last told something.
        """
        return ago(stream.last_delivery_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[LiveStream]:
        """
        The streams that are open.
        """
        return cast(LiveStreamQuerySet, super().get_queryset(request)).live()

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody.
        """
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody.
        """
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """
        Nobody: the stream itself would stay open. Those who may delete in principle may disconnect.
        """
        return False

    def has_disconnect_permission(self, request: HttpRequest) -> bool:
        """
        Those with the model's permission to delete.
        """
        return bool(super().has_delete_permission(request))

    @admin.action(description=_("Disconnect selected live streams"), permissions=["disconnect"])
    def disconnect_selected(self, request: HttpRequest, queryset: LiveStreamQuerySet) -> None:
        """
        End streams, wherever they are.
        """
        streams = list(queryset)
        count = disconnect(queryset)
        history.note(request, streams, "Disconnected.")
        message = ngettext("Disconnected %(count)d stream.", "Disconnected %(count)d streams.", count)
        self.message_user(request, message % {"count": count}, messages.SUCCESS)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """
        With the numbers of all that is open above the list.
        """
        usage = LiveStream.objects.live().aggregate(
            streams=Count("pk"), principals=Count("principal", distinct=True), nodes=Count("node", distinct=True)
        )
        return super().changelist_view(request, {"usage": usage, **(extra_context or {})})
