"""
Who may call: principals, what they may do (scopes), and the tokens that they show. And who listens: the open streams of
all processes that share the database.
"""

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar, Final

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.debug import sensitive_variables

from mcp_channels.grants import scope_names

TOKEN_PREFIX = "mcp_"  # noqa: S105  # no secret
"""What every token starts with, so that a scanner for leaked secrets knows one."""

ANONYMOUS: Final = "anonymous"
"""What the names of anonymous callers' principals start with; no other principal's does."""

DEAD_AFTER: Final = timedelta(seconds=20)
"""How long a node may be silent before its streams count no more, by the database's clock."""


class Scope(models.Model):
    """
    Something that a principal may do, as resources and tools name it.
    """

    name = models.CharField(_("name"), max_length=190, unique=True)
    description = models.CharField(_("description"), max_length=255, blank=True)

    class Meta:
        verbose_name = _("scope")
        verbose_name_plural = _("scopes")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def named(cls, names: Iterable[str]) -> "list[Scope]":
        """
        The scopes of these names; those that don't exist are made.
        """
        return [cls.objects.get_or_create(name=name)[0] for name in dict.fromkeys(names)]


class PrincipalManager(models.Manager["Principal"]):
    """
    Finds principals together with their scopes.
    """

    def find(self, **lookups: Any) -> "Principal | None":
        """
        The one principal that ``lookups`` name, with its user and ``granted``, or None. Asks one query.
        """
        names = scope_names(Principal.scopes.through, "principal", "pk")
        found = self.select_related("user").annotate(scope_names=names).filter(**lookups).order_by()[:1]
        for principal in found:
            principal.granted = frozenset(principal.scope_names or ())
            return principal
        return None


class Principal(models.Model):
    """
    Who is calling: a Django user, a service, or all anonymous callers from one address.
    """

    name = models.CharField(_("name"), max_length=190, unique=True)
    user = models.OneToOneField(
        django_settings.AUTH_USER_MODEL,
        verbose_name=_("user"),
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="mcp_principal",
        help_text=_("Empty for a service."),
    )
    is_active = models.BooleanField(_("active"), default=True)
    scopes = models.ManyToManyField(Scope, verbose_name=_("scopes"), blank=True, related_name="principals")
    max_streams = models.PositiveIntegerField(
        _("most streams"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("The most listen streams at once. Empty: the project's setting."),
    )
    notes = models.TextField(_("notes"), blank=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    is_anonymous = models.BooleanField(_("anonymous"), default=False, editable=False)
    last_listened_at = models.DateTimeField(_("last listened"), null=True, blank=True, editable=False)
    paced_until = models.DateTimeField(null=True, blank=True, editable=False)
    """Up to when a principal that supersedes its own young streams has used up its admissions."""

    objects = PrincipalManager()

    granted: frozenset[str] | None = None
    """The names of its scopes; None where the row wasn't loaded by ``objects.find()``."""

    class Meta:
        verbose_name = _("principal")
        verbose_name_plural = _("principals")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """
        Keep the names of anonymous callers' principals to them.
        """
        if not self.is_anonymous and is_anonymous_name(self.name):
            raise ValidationError({"name": _("Names that start with “anonymous” stand for anonymous callers.")})


class TokenManager(models.Manager["AccessToken"]):
    """
    Makes tokens, and finds them by what a caller shows.
    """

    @sensitive_variables("value")
    def issue(
        self,
        principal: Principal,
        *,
        label: str = "",
        scopes: Iterable[str] | None = None,
        lifetime: timedelta | None = None,
    ) -> "tuple[AccessToken, str]":
        """
        Make a token, and return its row and its value. The value is not stored and can't be had again.

        Args:
            principal: whom the token speaks for.
            label: what it is for, to recognise it by.
            scopes: names that narrow what the principal may do; None leaves it as it is.
            lifetime: how long it is good for; None: for ever.

        Raises:
            ValueError: the principal stands for anonymous callers, who show no token.
        """
        if principal.is_anonymous or is_anonymous_name(principal.name):
            raise ValueError(f"The principal {principal.name!r} stands for anonymous callers: it can have no token.")
        value = TOKEN_PREFIX + secrets.token_urlsafe(32)
        token = self.create(
            principal=principal,
            label=label,
            digest=digest(value),
            prefix=value[: len(TOKEN_PREFIX) + 6],
            is_narrowed=scopes is not None,
            expires_at=None if lifetime is None else timezone.now() + lifetime,
        )
        if scopes is not None:
            token.scopes.set(Scope.named(scopes))
        return token, value

    @sensitive_variables("values", "wanted")
    def find(self, values: Iterable[str]) -> "dict[str, AccessToken]":
        """
        The tokens with these values, good or not, by value: with their principals, their users, and ``granted``. Asks
        one query, whatever the number.
        """
        wanted = {digest(value): value for value in values}
        tokens = list(_tokens_with_scopes().using(self.db).filter(digest__in=wanted.keys()))
        for token in tokens:
            # Annotations, which the type checker doesn't see.
            row: Any = token
            token.granted = frozenset(row.principal_scopes or ())
            if token.is_narrowed:
                token.granted &= frozenset(row.own_scopes or ())
        return {wanted[token.digest]: token for token in tokens}


class AccessToken(models.Model):
    """
    A bearer token (RFC 6750). Only its hash is kept.
    """

    principal = models.ForeignKey(
        Principal, verbose_name=_("principal"), on_delete=models.CASCADE, related_name="tokens"
    )
    label = models.CharField(_("label"), max_length=190, blank=True)
    # The value has 256 random bits, so a plain hash is as good as a slow one, and can be looked up.
    digest = models.CharField(_("hash"), max_length=64, unique=True, editable=False)
    prefix = models.CharField(_("starts with"), max_length=16, editable=False)
    is_narrowed = models.BooleanField(_("narrowed"), default=False)
    scopes = models.ManyToManyField(
        Scope,
        verbose_name=_("scopes"),
        blank=True,
        related_name="tokens",
        help_text=_("Where the token is narrowed: what it may do, of what its principal may do."),
    )
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True)

    objects = TokenManager()

    granted: frozenset[str] | None = None
    """The names of the scopes that the token grants; None where the row wasn't loaded by ``objects.find()``."""

    class Meta:
        verbose_name = _("token")
        verbose_name_plural = _("tokens")
        ordering: ClassVar = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.prefix}…"

    def revoke(self) -> None:
        """
        Make the token worthless; the streams that it opened end.
        """
        if self.revoked_at is None:
            self.revoked_at = timezone.now()
            self.save(update_fields=["revoked_at"])

    def is_good(self, now: datetime) -> bool:
        """
        Whether the token may be used at ``now``. The state of its principal is not looked at.
        """
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Node(models.Model):
    """
    One event loop that serves streams, of one process. Its row ends with it.
    """

    id = models.CharField(primary_key=True, max_length=32)
    host = models.CharField(_("host"), max_length=190)
    pid = models.PositiveIntegerField(_("process id"))
    channel = models.CharField(_("channel"), max_length=190, blank=True, db_default="")
    """Where the node hears the channel layer; empty until that is known. Who sweeps its row away discards it."""
    started_at = models.DateTimeField(_("started"), db_default=Now())
    seen_at = models.DateTimeField(_("last seen"), db_default=Now())

    class Meta:
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        ordering: ClassVar = ["started_at"]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class LiveStreamQuerySet(models.QuerySet["LiveStream"]):
    """
    Streams, by what may be said of them.
    """

    def going_on(self) -> "LiveStreamQuerySet":
        """
        Those that are not being ended: they count under their principals' caps.
        """
        return self.filter(state__in=(LiveStream.State.OPEN, LiveStream.State.CHECK))

    def live(self) -> "LiveStreamQuerySet":
        """
        Those that are open: not being ended, and of a node that still lives.
        """
        return self.going_on().filter(node__seen_at__gt=Now() - DEAD_AFTER)


class LiveStream(models.Model):
    """
    An open listen stream. The keys are in order of admission, for each principal. Rows are the project's to read;
    ``mcp_channels.listen.orders`` ends streams.
    """

    class State(models.TextChoices):
        """
        What the node that holds the stream is to do with it.
        """

        OPEN = "open", _("open")
        CHECK = "check", _("to be checked")
        ENDING = "ending", _("ending")

    principal = models.ForeignKey(
        Principal,
        verbose_name=_("principal"),
        on_delete=models.SET_NULL,
        null=True,
        related_name="streams",
        db_index=False,
    )
    token = models.ForeignKey(
        AccessToken, verbose_name=_("token"), on_delete=models.SET_NULL, null=True, related_name="streams"
    )
    node = models.ForeignKey(
        Node, verbose_name=_("node"), on_delete=models.CASCADE, related_name="streams", db_index=False
    )
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.OPEN)
    reason = models.CharField(_("reason"), max_length=16, blank=True)
    """Why the stream is being ended, where it is."""
    endpoint = models.CharField(_("endpoint"), max_length=190)
    kinds = models.CharField(_("kinds"), max_length=190, blank=True)
    """The names of the honoured filter's fields, separated by a comma and a blank."""
    uri_count = models.PositiveIntegerField(_("URIs"), default=0)
    client_name = models.CharField(_("client"), max_length=190, blank=True)
    client_version = models.CharField(_("client version"), max_length=190, blank=True)
    address = models.CharField(_("address"), max_length=64, blank=True)
    opened_at = models.DateTimeField(_("opened"), db_default=Now())
    last_delivery_at = models.DateTimeField(_("last delivery"), null=True)
    delivered = models.PositiveBigIntegerField(_("delivered"), default=0)

    objects = LiveStreamQuerySet.as_manager()

    class Meta:
        verbose_name = _("live stream")
        verbose_name_plural = _("live streams")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["principal", "state"], name="mcp_channels_by_principal"),
            models.Index(fields=["node", "state"], name="mcp_channels_by_node"),
        ]
        # Who may have listening clients told of changes, through the REST API.
        permissions: ClassVar = [("notify", _("Can publish notifications"))]

    def __str__(self) -> str:
        return f"#{self.pk}"


def is_anonymous_name(name: str) -> bool:
    """
    Whether only an anonymous caller's principal may have this name.
    """
    # Some databases compare names without their case.
    folded = name.casefold()
    return folded == ANONYMOUS or folded.startswith(f"{ANONYMOUS}:")


@lru_cache(1)
def _tokens_with_scopes() -> "models.QuerySet[AccessToken]":
    of_token = scope_names(AccessToken.scopes.through, "accesstoken", "pk")
    return (
        AccessToken.objects.select_related("principal__user")
        .annotate(
            principal_scopes=scope_names(Principal.scopes.through, "principal", "principal"),
            own_scopes=models.Case(models.When(is_narrowed=True, then=of_token), output_field=models.JSONField()),
        )
        .order_by()
    )


def digest(value: str) -> str:
    """
    The hash under which a token's value is kept: SHA-256, in hex.
    """
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
