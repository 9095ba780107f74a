"""
Which changes have it looked at again who may listen: what stands on the rows of streams, and what nodes are told.
"""

from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in
from django.core import serializers
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone
from oauth2_provider.models import AccessToken as OAuthToken, Application
from rest_framework.authtoken.models import Token

from mcp_channels.auth import revocation
from mcp_channels.listen import orders
from mcp_channels.models import AccessToken, LiveStream, Node, Principal, Scope
from mcp_channels.publisher import publisher

pytestmark = pytest.mark.django_db(transaction=True)

User = get_user_model()


class World:
    """
    Two principals, each with a stream, and what is told of them.
    """

    def __init__(self) -> None:
        self.node = Node.objects.create(id="a" * 32, host="web", pid=1)
        self.scopes = Scope.named(["read", "write"])
        self.alice, self.token, self.stream = self.make("alice")
        self.bob, _, self.bobs = self.make("bob")
        self.messages: list[dict] = []

    def make(self, name):
        principal = Principal.objects.create(name=name, user=User.objects.create(username=name))
        principal.scopes.set(self.scopes)
        token, _ = AccessToken.objects.issue(principal, scopes=["read", "write"])
        stream = LiveStream.objects.create(principal=principal, token=token, node=self.node, endpoint="notes")
        return principal, token, stream

    @property
    def checked(self) -> set[int]:
        """
        The principals of whom nodes were told, which are also those whose streams' rows say so.
        """
        told = set().union(*map(orders.principals, self.messages))
        states = LiveStream.objects.exclude(state="open").exclude(principal=None)
        assert set(states.values_list("principal", flat=True)) == told & set(
            Principal.objects.values_list("pk", flat=True)
        )
        return told

    @property
    def ended(self) -> list[tuple[int, str]]:
        """
        The streams that nodes were told to end, with the reasons that stand on their rows.
        """
        told = [order for message in self.messages for order in orders.read(message)]
        rows = LiveStream.objects.filter(state="ending").order_by("pk").values_list("pk", "reason")
        assert list(rows) == sorted(told)
        return told


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setattr(publisher, "tell", lambda messages: made.messages.extend(messages))
    return made


def test_a_deactivated_principals_streams_end(world):
    world.alice.is_active = False
    world.alice.save()
    assert world.ended == [(world.stream.pk, "revoked")]
    # A stream that is being let in at this moment has no row yet.
    assert world.checked == {world.alice.pk}


def test_a_deleted_principals_streams_end(world):
    world.alice.delete()
    assert world.ended == [(world.stream.pk, "revoked")]
    assert LiveStream.objects.get(pk=world.stream.pk).principal is None


def test_principals_that_are_deleted_together_lose_all_their_streams(world):
    Principal.objects.all().delete()
    assert sorted(world.ended) == [(world.stream.pk, "revoked"), (world.bobs.pk, "revoked")]


def test_a_deleted_users_streams_end(world):
    world.alice.user.delete()
    assert world.ended == [(world.stream.pk, "revoked")]


def save_principal(world):
    world.alice.save()


def save_part_of_a_principal(world):
    world.alice.save(update_fields=["user"])


def save_by_get_or_update(world):
    Principal.objects.update_or_create(name="alice", defaults={"notes": "x"})


def remove_scope(world):
    world.alice.scopes.remove(world.scopes[0])


def set_scopes(world):
    world.alice.scopes.set([world.scopes[0]])


def clear_scopes(world):
    world.alice.scopes.clear()


def remove_principal_from_scope(world):
    world.scopes[0].principals.remove(world.alice)


def set_principals_of_scope(world):
    world.scopes[0].principals.set([world.bob])


def revoke(world):
    world.token.revoke()


def move_expiry(world):
    world.token.expires_at = timezone.now() + timedelta(seconds=1)
    world.token.save()


def delete_token(world):
    world.token.delete()


def delete_tokens(world):
    AccessToken.objects.filter(principal=world.alice).delete()


def remove_scope_from_token(world):
    world.token.scopes.remove(world.scopes[0])


def clear_scopes_of_token(world):
    world.token.scopes.clear()


def set_scopes_of_token(world):
    world.token.scopes.set([])


def remove_token_from_scope(world):
    world.scopes[0].tokens.remove(world.token)


def set_tokens_of_scope(world):
    world.scopes[0].tokens.set([token for token in AccessToken.objects.all() if token != world.token])


def deactivate_user(world):
    world.alice.user.is_active = False
    world.alice.user.save()


def deactivate_user_alone(world):
    world.alice.user.is_active = False
    world.alice.user.save(update_fields=["is_active", "first_name"])


def delete_drf_token(world):
    Token.objects.get(user=world.alice.user).delete()


def change_drf_token(world):
    Token.objects.get(user=world.alice.user).save()


def delete_oauth_token(world):
    OAuthToken.objects.get(user=world.alice.user).delete()


def revoke_oauth_token(world):
    OAuthToken.objects.get(user=world.alice.user).revoke()


def expire_oauth_token(world):
    token = OAuthToken.objects.get(user=world.alice.user)
    token.expires = timezone.now()
    token.save()


def delete_oauth_application(world):
    Application.objects.all().delete()


CHANGES = [
    save_principal,
    save_part_of_a_principal,
    save_by_get_or_update,
    remove_scope,
    set_scopes,
    clear_scopes,
    remove_principal_from_scope,
    set_principals_of_scope,
    revoke,
    move_expiry,
    delete_token,
    delete_tokens,
    remove_scope_from_token,
    clear_scopes_of_token,
    set_scopes_of_token,
    remove_token_from_scope,
    set_tokens_of_scope,
    deactivate_user,
    deactivate_user_alone,
    delete_drf_token,
    change_drf_token,
    delete_oauth_token,
    revoke_oauth_token,
    expire_oauth_token,
    delete_oauth_application,
]


@pytest.fixture
def credentials(world):
    """
    Alice's tokens of other packages.
    """
    user = world.alice.user
    application = Application.objects.create(
        name="app", client_type="confidential", authorization_grant_type="client-credentials", user=world.bob.user
    )
    OAuthToken.objects.create(
        user=user, token="x", scope="read", expires=timezone.now() + timedelta(hours=1), application=application
    )
    Token.objects.create(user=user)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_its_principal_looked_at_and_nobody_else(world, credentials, change):
    change(world)
    assert world.checked == {world.alice.pk}
    assert world.ended == []
    assert LiveStream.objects.get(pk=world.bobs.pk).state == "open"


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_rolled_back_is_none(world, credentials, change):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        change(world)
        1 / 0  # noqa: B018
    assert world.messages == []
    assert not LiveStream.objects.exclude(state="open").exists()


@pytest.mark.parametrize("change", CHANGES)
def test_nobody_is_told_before_the_commit(world, credentials, change):
    with transaction.atomic():
        change(world)
        assert world.messages == []
    assert world.checked == {world.alice.pk}


def rename_scope(world):
    world.scopes[0].name = "reading"
    world.scopes[0].save()


def delete_scope(world):
    world.scopes[0].delete()


def delete_scopes(world):
    Scope.objects.filter(name="read").delete()


def clear_principals_of_scope(world):
    world.scopes[0].principals.clear()


def clear_tokens_of_scope(world):
    world.scopes[0].tokens.clear()


@pytest.mark.parametrize(
    "change", [rename_scope, delete_scope, delete_scopes, clear_principals_of_scope, clear_tokens_of_scope]
)
def test_a_change_of_a_scope_has_all_looked_at_who_have_it(world, change):
    carol, _, _ = world.make("carol")
    carol.scopes.set([world.scopes[1]])
    carol.tokens.all().delete()
    LiveStream.objects.update(state="open")
    world.messages.clear()
    change(world)
    assert world.checked == {world.alice.pk, world.bob.pk}
    assert world.ended == []


def test_a_token_of_an_oauth_client_leads_to_the_clients_principal(world):
    application = Application.objects.create(
        client_id="abc", client_type="confidential", authorization_grant_type="client-credentials"
    )
    token = OAuthToken.objects.create(
        application=application, token="x", scope="read", expires=timezone.now() + timedelta(hours=1)
    )
    client = Principal.objects.create(name="client:abc")
    LiveStream.objects.create(principal=client, node=world.node, endpoint="notes")
    token.delete()
    assert world.checked == {client.pk}
    # And one of nobody leads nowhere.
    OAuthToken.objects.create(token="y", scope="", expires=timezone.now()).delete()
    assert world.checked == {client.pk}


def test_a_model_that_stands_for_the_users_counts_as_they_do(world):
    class Staff(User):
        class Meta:
            proxy = True
            app_label = "notes"

    try:
        revocation.connect()
        staff = Staff.objects.get(pk=world.alice.user.pk)
        staff.is_active = False
        staff.save()
        assert world.checked == {world.alice.pk}
    finally:
        del apps.all_models["notes"]["staff"]
        apps.clear_cache()


def log_in(world):
    user_logged_in.send(sender=User, request=None, user=world.alice.user)


def save_another_field_of_a_user(world):
    world.alice.user.save(update_fields=["email"])


def make_rows(world):
    principal = Principal.objects.create(name="new", is_active=False, user=User.objects.create(username="new"))
    AccessToken.objects.issue(principal, scopes=["read", "new"])
    Token.objects.create(user=world.alice.user)
    OAuthToken.objects.create(user=world.bob.user, token="x", scope="", expires=timezone.now() + timedelta(hours=1))


def add_scopes(world):
    [scope] = Scope.named(["new"])
    world.alice.scopes.add(scope)
    scope.principals.add(world.bob)
    world.token.scopes.add(scope)
    scope.tokens.add(world.token)
    world.alice.scopes.set([*world.scopes, scope])


def load_fixture(world):
    rows = [world.alice, world.token, world.scopes[0], world.alice.user]
    data = serializers.serialize("json", rows)
    for item in serializers.deserialize("json", data):
        # The scopes of a principal are set, to what they are.
        item.m2m_data = None
        item.save()


def use_token(world):
    AccessToken.objects.update(last_used_at=timezone.now())


def delete_what_nobody_has(world):
    Scope.named(["nobody's"])[0].delete()
    User.objects.create(username="nobody").delete()
    Token.objects.create(user=User.objects.create(username="stranger")).delete()


@pytest.mark.parametrize(
    "change",
    [
        log_in,
        save_another_field_of_a_user,
        make_rows,
        add_scopes,
        load_fixture,
        use_token,
        delete_what_nobody_has,
    ],
)
def test_what_takes_nothing_from_anybody_is_told_to_nobody(world, change):
    change(world)
    assert world.messages == []
    assert not LiveStream.objects.exclude(state="open").exists()


def test_the_command_revokes_every_token(world):
    AccessToken.objects.issue(world.alice)
    call_command("mcp_token", "alice", "--revoke")
    assert world.checked == {world.alice.pk}
    assert world.ended == []
