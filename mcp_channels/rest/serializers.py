"""
Principals, scopes, tokens, streams and notifications, as JSON.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied, ValidationError

from mcp_channels.auth.delegation import may_act_as
from mcp_channels.models import AccessToken, LiveStream, Principal, Scope, is_anonymous_name
from mcp_channels.rest.fields import MAX_ENTRIES, ScopesField, Text, UserField

LARGEST_KEY: Final = 2**63 - 1

LARGEST_NUMBER: Final = 2**31 - 1
"""What fits into a ``PositiveIntegerField`` of every database."""

LONGEST_LIFE: Final = timedelta(days=36_525)
"""How far off a token's end may be: a date of the year 9999 can't be shown in every time zone."""


class ScopeSerializer(serializers.ModelSerializer[Scope]):
    """
    A scope. Its name stays: another one would give its holders what it stands for.
    """

    class Meta:
        model = Scope
        fields = ["id", "name", "description"]

    def validate_name(self, name: str) -> str:
        """
        Keep it.
        """
        if self.instance is not None and name != self.instance.name:
            raise ValidationError(_("A scope's name can't be changed."))
        return name


class PrincipalSerializer(serializers.ModelSerializer[Principal]):
    """
    A principal.
    """

    user = UserField(allow_null=True, required=False, help_text=_("A username; null for a service."))
    scopes = ScopesField(required=False)
    max_streams = serializers.IntegerField(
        allow_null=True,
        required=False,
        min_value=1,
        max_value=LARGEST_NUMBER,
        help_text=_("The most listen streams at once; null: the project's setting."),
    )
    live_streams = serializers.IntegerField(read_only=True, help_text=_("How many streams are open."))

    class Meta:
        model = Principal
        fields = [
            "id",
            "name",
            "user",
            "is_active",
            "is_anonymous",
            "scopes",
            "max_streams",
            "notes",
            "created_at",
            "last_listened_at",
            "live_streams",
        ]
        read_only_fields = ["is_anonymous", "created_at", "last_listened_at"]

    def validate_name(self, name: str) -> str:
        """
        Keep the names of anonymous callers' principals to them, and theirs as they are.
        """
        if self.instance is not None and name == self.instance.name:
            return name
        if self._is_anonymous():
            raise ValidationError(_("The name of an anonymous caller's principal can't be changed."))
        if is_anonymous_name(name):
            raise ValidationError(_("Names that start with “anonymous” stand for anonymous callers."))
        return name

    def validate_user(self, user: Any) -> Any:
        """
        A user has one principal, and only who may do all that they may lets tokens speak for them.
        """
        if user is None or (self.instance is not None and user == self.instance.user):
            return user
        if self._is_anonymous():
            raise ValidationError(_("An anonymous caller's principal has no user."))
        if not may_act_as(self.context["request"].user, user):
            raise PermissionDenied(_("This user may do more than you may."))
        if Principal.objects.filter(user=user).exists():
            raise ValidationError(_("The user has a principal already."))
        return user

    def validate_scopes(self, scopes: list[Scope]) -> list[Scope]:
        """
        Anonymous callers have none.
        """
        if scopes and self._is_anonymous():
            raise ValidationError(_("An anonymous caller's principal has no scopes."))
        return scopes

    def create(self, validated_data: dict[str, Any]) -> Principal:
        """
        See Serializer.
        """
        scopes = validated_data.pop("scopes", ())
        principal = Principal.objects.create(**validated_data)
        principal.scopes.set(scopes)
        return principal

    def update(self, instance: Principal, validated_data: dict[str, Any]) -> Principal:
        """
        See Serializer.
        """
        scopes = validated_data.pop("scopes", None)
        for name, value in validated_data.items():
            setattr(instance, name, value)
        # What a node notes on the row meanwhile is not written over.
        instance.save(update_fields=list(validated_data))
        if scopes is not None:
            instance.scopes.set(scopes)
        return instance

    def _is_anonymous(self) -> bool:
        return self.instance is not None and self.instance.is_anonymous


class TokenSerializer(serializers.ModelSerializer[AccessToken]):
    """
    A token, without its value.
    """

    principal = serializers.IntegerField(
        source="principal_id", min_value=1, max_value=LARGEST_KEY, help_text=_("The principal's id.")
    )
    principal_name = serializers.CharField(source="principal.name", read_only=True)
    scopes = ScopesField(
        allow_null=True,
        required=False,
        help_text=_("What the token may do, of what its principal may do; null: all of it."),
    )

    class Meta:
        model = AccessToken
        fields = [
            "id",
            "principal",
            "principal_name",
            "prefix",
            "label",
            "scopes",
            "created_at",
            "expires_at",
            "last_used_at",
            "revoked_at",
        ]
        read_only_fields = ["prefix", "created_at", "last_used_at", "revoked_at"]

    def to_representation(self, instance: AccessToken) -> dict[str, Any]:
        """
        See Serializer.
        """
        shown = super().to_representation(instance)
        if not instance.is_narrowed:
            shown["scopes"] = None
        return shown


class NewTokenSerializer(TokenSerializer):
    """
    A token that is being made, with its value.
    """

    value = serializers.CharField(read_only=True, help_text=_("The token itself. It is shown here and never again."))

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "value"]

    def validate_principal(self, key: int) -> int:
        """
        It exists, somebody can call as it, and the token will not do more than its maker may.
        """
        # Held, so that it is nobody else's until the token is made.
        principal = Principal.objects.select_for_update().filter(pk=key).first()
        if principal is None:
            raise ValidationError(_("There is no such principal."))
        if principal.is_anonymous:
            raise ValidationError(_("An anonymous caller's principal has no tokens."))
        if principal.user is not None and not may_act_as(self.context["request"].user, principal.user):
            raise PermissionDenied(_("This principal's user may do more than you may."))
        self._principal = principal
        return key

    def validate_expires_at(self, when: datetime | None) -> datetime | None:
        """
        It is still to come, and will come.
        """
        if when is None:
            return None
        now = timezone.now()
        if when <= now:
            raise ValidationError(_("This is in the past."))
        if when > now + LONGEST_LIFE:
            raise ValidationError(_("This is too far off."))
        return when

    def create(self, validated_data: dict[str, Any]) -> AccessToken:
        """
        See Serializer.
        """
        scopes: Sequence[Scope] | None = validated_data.get("scopes")
        names = None if scopes is None else [scope.name for scope in scopes]
        token, value = AccessToken.objects.issue(self._principal, label=validated_data.get("label", ""), scopes=names)
        if (when := validated_data.get("expires_at")) is not None:
            token.expires_at = when
            token.save(update_fields=["expires_at"])
        token.value = value  # type: ignore[attr-defined]  # for this response alone
        return token


class StreamSerializer(serializers.ModelSerializer[LiveStream]):
    """
    An open stream.
    """

    principal_name = serializers.CharField(source="principal.name", read_only=True, allow_null=True, default=None)
    kinds = serializers.SerializerMethodField(help_text=_("The honoured filter's fields."))
    node = serializers.CharField(help_text=_("The process that holds it."))

    class Meta:
        model = LiveStream
        fields = [
            "id",
            "principal",
            "principal_name",
            "token",
            "endpoint",
            "kinds",
            "uri_count",
            "client_name",
            "client_version",
            "address",
            "node",
            "opened_at",
            "last_delivery_at",
            "delivered",
        ]
        read_only_fields = fields

    def get_kinds(self, stream: LiveStream) -> list[str]:
        """
        One by one.
        """
        return stream.kinds.split(", ") if stream.kinds else []


class IdsSerializer(serializers.Serializer[Any]):
    """
    Which streams to end.
    """

    ids = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=LARGEST_KEY),
        allow_empty=False,
        max_length=MAX_ENTRIES,
    )


class DisconnectedSerializer(serializers.Serializer[Any]):
    """
    How many streams are being ended.
    """

    disconnected = serializers.IntegerField()


class NotifySerializer(serializers.Serializer[Any]):
    """
    What changed.
    """

    tools = serializers.BooleanField(default=False, help_text=_("The list of tools."))
    prompts = serializers.BooleanField(default=False, help_text=_("The list of prompts."))
    resources = serializers.BooleanField(default=False, help_text=_("The list of resources."))
    uris = serializers.ListField(
        # A URI is compared byte for byte.
        child=Text(trim_whitespace=False),
        default=list,
        max_length=MAX_ENTRIES,
        help_text=_("Resources."),
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """
        Something did.
        """
        if not any(attrs.values()):
            raise ValidationError(_("Name at least one thing that changed."))
        return attrs


class AcceptedSerializer(serializers.Serializer[Any]):
    """
    How many topics are being published.
    """

    topics = serializers.IntegerField()
