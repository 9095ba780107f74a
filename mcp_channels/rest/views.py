"""
The views. Everything is changed through the ORM's own saves and deletions, so that signals fire.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.db import IntegrityError, models, router, transaction
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from rest_framework import generics, mixins, serializers, status, viewsets
from rest_framework.decorators import action
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_channels import topics
from mcp_channels.listen import orders
from mcp_channels.models import AccessToken, LiveStream, Principal, Scope
from mcp_channels.notify import publish
from mcp_channels.rest import filtersets
from mcp_channels.rest.filters import FieldFilter, Ordering, Search
from mcp_channels.rest.pagination import Pages
from mcp_channels.rest.parsers import JSONParser
from mcp_channels.rest.permissions import MayNotify, ModelPermissions, NotNarrowed
from mcp_channels.rest.schema import described
from mcp_channels.rest.serializers import (
    AcceptedSerializer,
    DisconnectedSerializer,
    IdsSerializer,
    NewTokenSerializer,
    NotifySerializer,
    PrincipalSerializer,
    ScopeSerializer,
    StreamSerializer,
    TokenSerializer,
)


class ConflictError(APIException):
    """
    Another request was faster.
    """

    status_code = status.HTTP_409_CONFLICT
    default_detail = _("This was changed by another request at the same time.")
    default_code = "conflict"


class _Views(viewsets.GenericViewSet[Any]):
    """
    What all of these views share. Who calls is told by the project's ``DEFAULT_AUTHENTICATION_CLASSES``.
    """

    permission_classes = [NotNarrowed, ModelPermissions]
    parser_classes = [JSONParser]
    pagination_class = Pages
    filter_backends = [FieldFilter, Search, Ordering]
    # The API has an address of its own, whatever the project versions.
    versioning_class = None

    action_permissions: ClassVar[dict[str, str]] = {}
    """The permissions that actions need which are none of the usual."""

    filter_serializer: ClassVar[type[serializers.Serializer[Any]]]

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """
        Filters are for lists.
        """
        return super().filter_queryset(queryset) if self.action == "list" else queryset


class _Writable(mixins.CreateModelMixin, mixins.UpdateModelMixin, mixins.DestroyModelMixin, _Views):
    """
    Each change is one transaction, and holds the row that it changes.
    """

    model: ClassVar[type[models.Model]]

    def rows(self) -> QuerySet[Any]:
        """
        What is listed, with all that is shown of it.
        """
        return self.model._default_manager.all()

    def get_queryset(self) -> QuerySet[Any]:
        """
        See GenericAPIView.
        """
        if self.action in ("update", "partial_update", "destroy", "revoke"):
            return self.model._default_manager.select_for_update()
        return self.rows()

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """
        See CreateModelMixin.
        """
        with self.change():
            return super().create(request, *args, **kwargs)

    def update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """
        See UpdateModelMixin.
        """
        with self.change():
            return super().update(request, *args, **kwargs)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """
        See DestroyModelMixin.
        """
        with self.change():
            return super().destroy(request, *args, **kwargs)

    def perform_create(self, serializer: serializers.BaseSerializer[Any]) -> None:
        """
        See CreateModelMixin.
        """
        serializer.instance = self._as_shown(serializer.save())

    def perform_update(self, serializer: serializers.BaseSerializer[Any]) -> None:
        """
        See UpdateModelMixin.
        """
        serializer.instance = self._as_shown(serializer.save())

    @contextmanager
    def change(self) -> Iterator[None]:
        """
        The transaction.

        Raises:
            ConflictError: the name was taken, or something that this refers to deleted, in between.
        """
        try:
            with transaction.atomic(using=self._database):
                yield
        except IntegrityError:
            raise ConflictError from None

    @property
    def _database(self) -> str:
        return str(router.db_for_write(self.model))

    def _as_shown(self, row: models.Model) -> Any:
        return self.rows().using(self._database).get(pk=row.pk)


class ScopeViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Writable):
    """
    Scopes: what principals may do, as resources and tools name it.
    """

    model = Scope
    queryset = Scope.objects.all()
    serializer_class = ScopeSerializer
    filter_serializer = filtersets.ScopeFilters
    search_fields = ["name", "description"]
    ordering_fields = ["id", "name"]
    ordering = ["name"]


class PrincipalViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Writable):
    """
    Principals: who may call.
    """

    model = Principal
    queryset = Principal.objects.all()
    serializer_class = PrincipalSerializer
    filter_serializer = filtersets.PrincipalFilters
    search_fields = ["name", "notes", f"user__{get_user_model().USERNAME_FIELD}"]
    ordering_fields = ["id", "name", "is_active", "created_at", "last_listened_at", "live_streams"]
    ordering = ["name"]

    def rows(self) -> QuerySet[Principal]:
        """
        With users, scopes, and how many streams are open: three queries, whatever the number.
        """
        live = LiveStream.objects.live().filter(principal=OuterRef("pk")).order_by().values("principal")
        counted = live.annotate(count=Count("pk")).values("count")
        return (
            Principal.objects.select_related("user")
            .prefetch_related("scopes")
            .annotate(live_streams=Coalesce(Subquery(counted), 0))
        )


class TokenViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Writable):
    """
    Tokens. What a token may do can't be changed: make another, and revoke this one.
    """

    model = AccessToken
    queryset = AccessToken.objects.all()
    http_method_names = ["get", "post", "delete", "head", "options"]
    filter_serializer = filtersets.TokenFilters
    search_fields = ["prefix", "label", "principal__name"]
    ordering_fields = ["id", "created_at", "expires_at", "last_used_at", "revoked_at"]
    ordering = ["-created_at"]
    action_permissions = {"revoke": "mcp_channels.change_accesstoken"}

    def rows(self) -> QuerySet[AccessToken]:
        """
        With principals and scopes: two queries, whatever the number.
        """
        return AccessToken.objects.select_related("principal").prefetch_related("scopes")

    def get_serializer_class(self) -> type[serializers.BaseSerializer[Any]]:
        """
        See GenericAPIView.
        """
        return NewTokenSerializer if self.action == "create" else TokenSerializer

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """
        Make a token. The answer alone has its value.
        """
        response = super().create(request, *args, **kwargs)
        # RFC 6750 §5.3 would have tokens in no cache.
        response["Cache-Control"] = "no-store"
        return response

    def perform_create(self, serializer: serializers.BaseSerializer[Any]) -> None:
        """
        See CreateModelMixin.
        """
        token = serializer.save()
        serializer.instance = self._as_shown(token)
        serializer.instance.value = token.value

    @described(request=None, responses=TokenSerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str | None = None) -> Response:
        """
        Revoke a token: it is refused from now on, and its streams end. Once is enough.
        """
        with self.change():
            token = self.get_object()
            if token.revoked_at is None:
                token.revoked_at = timezone.now()
                token.save(update_fields=["revoked_at"])
            return Response(self.get_serializer(self._as_shown(token)).data)


class StreamViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Views):
    """
    The streams that are open, in all processes that share the database.
    """

    queryset = LiveStream.objects.all()
    serializer_class = StreamSerializer
    filter_serializer = filtersets.StreamFilters
    search_fields = ["principal__name", "endpoint", "client_name", "address", "node__host"]
    ordering_fields = ["id", "opened_at", "last_delivery_at", "delivered", "uri_count"]
    ordering = ["-id"]
    action_permissions = {
        "disconnect": "mcp_channels.delete_livestream",
        "disconnect_many": "mcp_channels.delete_livestream",
    }

    def get_queryset(self) -> QuerySet[LiveStream]:
        """
        See GenericAPIView.
        """
        return LiveStream.objects.live().select_related("principal", "node")

    @described(responses={204: None})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """
        End a stream, as ``disconnect`` does.
        """
        self._disconnect_one()
        return Response(status=status.HTTP_204_NO_CONTENT)

    @described(request=None, responses={202: DisconnectedSerializer})
    @action(detail=True, methods=["post"])
    def disconnect(self, request: Request, pk: str | None = None) -> Response:
        """
        End a stream, wherever it is: within two seconds.
        """
        return _ending(self._disconnect_one())

    @described(operation_id="streams_disconnect_many", request=IdsSerializer, responses={202: DisconnectedSerializer})
    @action(detail=False, methods=["post"], url_path="disconnect", serializer_class=IdsSerializer)
    def disconnect_many(self, request: Request) -> Response:
        """
        End these streams; those that are not open are passed over.
        """
        wanted = self.get_serializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        return _ending(orders.disconnect(LiveStream.objects.live().filter(pk__in=set(wanted.validated_data["ids"]))))

    def _disconnect_one(self) -> int:
        return orders.disconnect(LiveStream.objects.filter(pk=self.get_object().pk))


class NotifyView(generics.GenericAPIView[Any]):
    """
    Has listening clients told of changes.
    """

    permission_classes = [NotNarrowed, MayNotify]
    parser_classes = [JSONParser]
    versioning_class = None
    serializer_class = NotifySerializer

    @described(responses={202: AcceptedSerializer})
    def post(self, request: Request) -> Response:
        """
        Publish. With ``ATOMIC_REQUESTS`` it waits for the commit, as all notifications do.
        """
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        said = serializer.validated_data
        lists = [topic for topic in (topics.TOOLS, topics.PROMPTS, topics.RESOURCES) if said[topic.kind]]
        changed = [*lists, *(topics.resource(uri) for uri in dict.fromkeys(said["uris"]))]
        publish(*changed)
        return Response({"topics": len(changed)}, status=status.HTTP_202_ACCEPTED)


def _ending(count: int) -> Response:
    return Response({"disconnected": count}, status=status.HTTP_202_ACCEPTED)
