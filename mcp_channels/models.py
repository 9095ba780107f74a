"""
Who may call: principals, what they may do (scopes), and the tokens that they show.
"""

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar

from django.conf import settings as django_settings
from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

TOKEN_PREFIX = "mcp_"  # noqa: S105  # no secret
"""What every token starts with, so that a scanner for leaked secrets knows one."""


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


class Principal(models.Model):
    """
    Who is calling: a Django user, or a service.
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

    class Meta:
        verbose_name = _("principal")
        verbose_name_plural = _("principals")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class TokenManager(models.Manager["AccessToken"]):
    """
    Makes tokens, and finds them by what a caller shows.
    """

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
        """
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

    def find(self, values: Iterable[str]) -> "dict[str, AccessToken]":
        """
        The tokens with these values, good or not, by value: with their principals, their users, and ``granted``. Asks
        two queries, and a third where a token is narrowed, whatever the number.
        """
        wanted = {digest(value): value for value in values}
        tokens = list(self.select_related("principal__user").filter(digest__in=wanted.keys()).order_by())
        of_principals = _names(Principal.scopes.through, "principal", {token.principal_id for token in tokens})
        of_tokens = _names(
            AccessToken.scopes.through, "accesstoken", {token.pk for token in tokens if token.is_narrowed}
        )
        for token in tokens:
            token.granted = frozenset(of_principals.get(token.principal_id, ()))
            if token.is_narrowed:
                token.granted &= of_tokens.get(token.pk, set())
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

    def is_good(self, now: datetime) -> bool:
        """
        Whether the token may be used at ``now``. The state of its principal is not looked at.
        """
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def _names(through: Any, owner: str, keys: set[Any]) -> dict[Any, set[str]]:
    """
    The names of the scopes of each owner.
    """
    names: dict[Any, set[str]] = {}
    if keys:
        rows = through.objects.filter(**{f"{owner}__in": keys}).values_list(f"{owner}_id", "scope__name")
        for key, name in rows:
            names.setdefault(key, set()).add(name)
    return names


def digest(value: str) -> str:
    """
    The hash under which a token's value is kept: SHA-256, in hex.
    """
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
