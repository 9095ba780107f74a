"""
What the pictures show: a project with some principals, tokens and streams.
"""

FILL = """
from datetime import timedelta
from django.db.models.functions import Now
from django.utils import timezone

now = timezone.now()
User.objects.create_superuser("admin", password="admin")
scopes = {
    name: models.Scope.objects.create(name=name, description=about)
    for name, about in (
        ("notes:read", "Read and watch notes"),
        ("notes:write", "Write notes"),
        ("orders:read", "Read and watch orders"),
        ("reports:read", "Read reports"),
    )
}

def principal(name, *granted, user=None, **fields):
    if user:
        fields["user"] = User.objects.create_user(user)
    row = models.Principal.objects.create(name=name, **fields)
    row.scopes.set([scopes[scope] for scope in granted])
    return row

alice = principal("alice", "notes:read", "notes:write", user="alice", max_streams=2, last_listened_at=now)
reporter = principal("nightly-report", "orders:read", "reports:read", notes="Runs at 02:00.", last_listened_at=now)
shop = principal("shop-window", "orders:read", max_streams=40, last_listened_at=now)
principal("old-laptop", "notes:read", is_active=False, last_listened_at=now - timedelta(days=40))
visitor = principal("anonymous:203.0.113.7", is_anonymous=True, max_streams=1, last_listened_at=now)

issue = models.AccessToken.objects.issue
desk, _ = issue(alice, label="desktop assistant", lifetime=timedelta(days=90))
phone, _ = issue(alice, label="phone", scopes=["notes:read"])
lost, _ = issue(alice, label="lost laptop")
token, _ = issue(reporter, label="cron", lifetime=timedelta(days=30))
lost.revoked_at = now - timedelta(days=3)
lost.save()
models.AccessToken.objects.filter(pk=desk.pk).update(last_used_at=now - timedelta(minutes=4))

# They are of nodes that don't run here, so their heartbeats are written ahead.
ahead = timezone.now() + timedelta(hours=1)
web1 = models.Node.objects.create(id="web1", host="web-1", pid=4711, seen_at=ahead)
web2 = models.Node.objects.create(id="web2", host="web-2", pid=93, seen_at=ahead)

def stream(owner, minutes, delivered, kinds, uris=0, node=web1, client=("claude-desktop", "1.4.0"), **fields):
    models.LiveStream.objects.create(
        principal=owner,
        node=node,
        endpoint=fields.pop("endpoint", "notes"),
        kinds=kinds,
        uri_count=uris,
        client_name=client[0],
        client_version=client[1],
        opened_at=now - timedelta(minutes=minutes),
        last_delivery_at=now - timedelta(seconds=7 * minutes) if delivered else None,
        delivered=delivered,
        **fields,
    )

stream(alice, 42, 311, "toolsListChanged, resourceSubscriptions", 12, token=desk, address="198.51.100.20")
stream(alice, 9, 4, "resourceSubscriptions", 1, node=web2, token=phone, client=("notes-mobile", "0.9"),
       address="2001:db8:7::12")
stream(reporter, 55, 0, "resourcesListChanged", token=token, client=("report-runner", "2026.1"), address="10.0.4.17")
stream(shop, 31, 5120, "resourcesListChanged, resourceSubscriptions", 240, node=web2, client=("window", "3.2.1"),
       address="10.0.4.30")
stream(visitor, 2, 1, "toolsListChanged, promptsListChanged", endpoint="open", client=("inspector", "1.0"),
       address="203.0.113.7")
result = {"alice": alice.pk, "visitor": visitor.pk, "stream": models.LiveStream.objects.first().pk}
"""
