"""
Makes principals and their tokens.
"""

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from mcp_channels.models import AccessToken, Principal, Scope


class Command(BaseCommand):
    """
    ``manage.py mcp_token NAME``: see ``--help``.
    """

    help = "Create or update principal NAME, and print a new token for it, alone on the last line."

    def add_arguments(self, parser: CommandParser) -> None:
        """
        See BaseCommand.
        """
        parser.add_argument("name", help="the principal's name")
        parser.add_argument("--user", metavar="USERNAME", help="the Django user that the principal stands for")
        parser.add_argument(
            "--scope", action="append", dest="scopes", metavar="S", help="a scope to grant (repeat it); replaces others"
        )
        parser.add_argument("--max-streams", type=_positive, metavar="N", help="the most listen streams at once")
        parser.add_argument("--ttl", type=_positive, metavar="SECONDS", help="how long the token is good for")
        parser.add_argument("--revoke", action="store_true", help="revoke all tokens of NAME, and make none")

    def handle(self, *args: Any, **options: Any) -> None:
        """
        See BaseCommand.
        """
        if options["revoke"]:
            self._revoke(options["name"])
            return
        with transaction.atomic():
            principal = self._principal(options)
            lifetime = None if options["ttl"] is None else timedelta(seconds=options["ttl"])
            _, value = AccessToken.objects.issue(principal, label="mcp_token", lifetime=lifetime)
        self.stdout.write(value)

    def _revoke(self, name: str) -> None:
        principal = Principal.objects.filter(name=name).first()
        if principal is None:
            raise CommandError(f"There is no principal {name!r}.")
        tokens = list(principal.tokens.filter(revoked_at=None))
        for token in tokens:
            token.revoke()
        count = len(tokens)
        self.stdout.write(f"Revoked {count} token{'' if count == 1 else 's'} of {name}.")

    def _principal(self, options: dict[str, Any]) -> Principal:
        principal = Principal.objects.filter(name=options["name"]).first() or Principal(name=options["name"])
        if principal.is_anonymous:
            raise CommandError(f"The principal {principal.name!r} stands for anonymous callers: it can have no token.")
        if options["user"] is not None:
            users = get_user_model()
            try:
                principal.user = users._default_manager.get_by_natural_key(options["user"])
            except users.DoesNotExist:
                raise CommandError(f"There is no user {options['user']!r}.") from None
            other = Principal.objects.filter(user=principal.user).exclude(pk=principal.pk).first()
            if other is not None:
                raise CommandError(f"The user {options['user']!r} is principal {other.name!r} already.")
        if options["max_streams"] is not None:
            principal.max_streams = options["max_streams"]
        try:
            principal.full_clean()
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from None
        # Not the whole row: admissions and the admin write to it at the same time.
        fields = [name for name in ("user", "max_streams") if options[name] is not None]
        if principal.pk is None:
            principal.save()
        elif fields:
            principal.save(update_fields=fields)
        if options["scopes"] is not None:
            principal.scopes.set(Scope.named(options["scopes"]))
        return principal


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be positive")
    return value
