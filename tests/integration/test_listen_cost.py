"""
What a listen of a thousand URIs asks the database, and how long it takes: the same, whether or not the rows exist.
"""

import statistics
import time

import pytest

from tests.support.http import listening

ROWS = """
alice, bob = (User.objects.create(username=name) for name in ("alice", "bob"))
reader = models.Principal.objects.create(name="alice", user=alice, max_streams=100)
reader.scopes.set(models.Scope.named(["notes:read"]))
mine, theirs = [Note(title="x", owner=alice) for _ in range(1000)], [Note(title="x", owner=bob) for _ in range(1000)]
Note.objects.bulk_create([*mine, *theirs])
other = models.Principal.objects.create(name="bob", user=bob)
last = Note.objects.order_by("-pk").first().pk
result = {
    "tokens": [models.AccessToken.objects.issue(principal)[1] for principal in (other, reader, reader)],
    "readable": [note.pk for note in mine],
    "forbidden": [note.pk for note in theirs],
    "absent": list(range(last + 1, last + 1001)),
}
"""

COUNT = """
import asyncio
from tests.support import queries
models.Principal.objects.update(last_listened_at=None)
models.AccessToken.objects.update(last_used_at=None)
result = asyncio.run(queries.listen_with(tokens, asked))
"""

KINDS = ("readable", "forbidden", "absent")
IN_TRANSACTIONS = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")


def of(made, kind):
    return {"resourceSubscriptions": [f"note://{pk}" for pk in made[kind]]}


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request, make_project):
    """
    The example project on either database, with a layer in memory.
    """
    if request.param == "sqlite":
        return make_project()
    postgres = request.getfixturevalue("postgres")
    return make_project(DATABASE_URL=postgres.create(f"cost_{time.monotonic_ns()}"))


def test_a_thousand_uris_take_at_most_six_queries(stored):
    made = stored.worker.run(ROWS)
    counts = {}
    for kind in KINDS:
        asked = of(made, kind)
        # A process's first stream, one of a principal and a token that were not used before, and that once more.
        first, used, _ = made["tokens"]
        _, cold, warm = stored.worker.run(COUNT, tokens=[first, used, used], asked=asked)
        for honoured, statements in (cold, warm):
            assert honoured == (asked if kind == "readable" else {})
            assert sum("mcp_channels_livestream" in sql and sql.startswith("INSERT") for sql in statements) == 1
        counted = [[sql for sql in sent if not sql.startswith(IN_TRANSACTIONS)] for _, sent in (cold, warm)]
        counts[kind] = tuple(map(len, counted))
        assert max(counts[kind]) <= 6, counted
        assert counts[kind][0] > counts[kind][1]
    # What is told to nobody can't be told from what isn't there.
    assert len(set(counts.values())) == 1, counts


ROUNDS = 120


async def test_what_may_not_be_heard_takes_as_long_as_what_is_not_there(make_project):
    """
    Pairs, in turn in either order, so that what else the machine does hits both alike. Their median difference must not
    stand out of its own uncertainty; a second query for one of the two would.
    """
    project = make_project()
    made = project.worker.run(ROWS)
    server = project.serve("uvicorn")
    token = made["tokens"][1]

    async def seconds(kind: str) -> float:
        started = time.perf_counter()
        async with listening(server.port, of(made, kind), token=token) as stream:
            took = time.perf_counter() - started
            assert stream.honoured == {}
        return took

    for kind in ("forbidden", "absent"):
        await seconds(kind)
    differences, took = [], []
    for number in range(ROUNDS):
        order = ("forbidden", "absent") if number % 2 else ("absent", "forbidden")
        measured = {kind: await seconds(kind) for kind in order}
        differences.append(measured["forbidden"] - measured["absent"])
        took.extend(measured.values())
    middle = statistics.median(differences)
    spread = 1.4826 * statistics.median(abs(difference - middle) for difference in differences)
    # Of the median of so many: its standard error.
    uncertainty = 1.2533 * spread / ROUNDS**0.5
    assert abs(middle) <= max(5 * uncertainty, 0.05 * statistics.median(took)), (middle, uncertainty)
