"""
The cap's transaction.
"""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_channels.listen import admission
from mcp_channels.listen.admission import Admission, Candidate, Delay, NotAdmittedError
from mcp_channels.models import LiveStream, Node, Principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    return Node.objects.create(id="here", host="h", pid=1)


@pytest.fixture
def alice():
    return Principal.objects.create(name="alice", last_listened_at=timezone.now())


def candidate(principal, node, **options):
    return Candidate(principal, LiveStream(node=node, endpoint="e"), **options)


def admit(*candidates, cap=2):
    return admission.admit(candidates, default_cap=cap)


def live(principal):
    return list(
        LiveStream.objects.filter(principal=principal)
        .exclude(state="ending")
        .order_by("pk")
        .values_list("pk", flat=True)
    )


def age(seconds):
    LiveStream.objects.update(opened_at=timezone.now() - timedelta(seconds=seconds))


def test_streams_under_the_cap_are_let_in(alice, node):
    first, second = admit(candidate(alice, node), candidate(alice, node))
    assert live(alice) == [first.key, second.key]
    assert (first.displaced, second.displaced) == ((), ())
    assert first.principal == alice.pk


def test_one_too_many_supersedes_the_oldest(alice, node):
    first, second = admit(candidate(alice, node), candidate(alice, node))
    [third] = admit(candidate(alice, node))
    assert third.displaced == ((first.key, "here"),)
    assert live(alice) == [second.key, third.key]
    row = LiveStream.objects.get(pk=first.key)
    assert (row.state, row.reason) == ("ending", "superseded")


def test_within_a_batch_each_supersedes_the_oldest_there_is(alice, node):
    outcomes = admit(*(candidate(alice, node) for _ in range(5)))
    keys = [outcome.key for outcome in outcomes]
    assert keys == sorted(keys)
    assert [outcome.is_superseded for outcome in outcomes] == [True, True, True, False, False]
    assert [[item.key for item in outcome.displaced] for outcome in outcomes] == [
        [],
        [],
        [keys[0]],
        [keys[1]],
        [keys[2]],
    ]
    assert live(alice) == keys[3:]


def test_a_cap_that_was_lowered_takes_all_that_are_over(alice, node):
    held = [outcome.key for outcome in admit(*(candidate(alice, node) for _ in range(4)), cap=4)]
    age(60)
    alice.max_streams = 1
    [last] = admit(candidate(alice, node), cap=4)
    assert [item.key for item in last.displaced] == held
    assert live(alice) == [last.key]


def test_other_principals_are_not_touched(alice, node):
    bob = Principal.objects.create(name="bob", max_streams=1)
    [bobs] = admit(candidate(bob, node))
    outcomes = admit(candidate(alice, node), candidate(bob, node), candidate(alice, node), candidate(alice, node))
    assert [len(outcome.displaced) for outcome in outcomes] == [0, 1, 0, 1]
    assert outcomes[1].displaced[0].key == bobs.key
    assert len(live(alice)) == 2
    assert len(live(bob)) == 1


def test_a_batch_asks_three_queries_however_large_it_is(alice, node):
    bob = Principal.objects.create(name="bob", last_listened_at=timezone.now())
    counts = []
    for number in (1, 30):
        batch = [candidate(principal, node) for principal in (alice, bob) for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            admit(*batch, cap=100)
        counts.append([query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]])
    assert [len(some) for some in counts] == [3, 3]


@pytest.mark.parametrize("fields", [{"max_streams": 0}, {"is_active": False}])
def test_who_may_hold_none_is_refused(alice, node, fields):
    Principal.objects.filter(pk=alice.pk).update(**fields)
    alice.refresh_from_db()
    [outcome] = admit(candidate(alice, node))
    assert isinstance(outcome, NotAdmittedError)
    assert not LiveStream.objects.exists()


def test_a_principal_that_was_deleted_is_refused_and_the_others_are_let_in(alice, node):
    bob = Principal.objects.create(name="bob")
    Principal.objects.filter(pk=bob.pk).delete()
    refused, admitted = admit(candidate(bob, node), candidate(alice, node))
    assert isinstance(refused, NotAdmittedError)
    assert isinstance(admitted, Admission)


def test_anonymous_callers_have_a_principal_by_their_name(node):
    one, two, three = (Principal(name=f"anonymous:10.0.0.{number}", is_anonymous=True) for number in (1, 1, 2))
    outcomes = admit(candidate(one, node), candidate(two, node), candidate(three, node), cap=1)
    assert outcomes[0].principal == outcomes[1].principal != outcomes[2].principal
    assert outcomes[0].is_superseded
    assert set(Principal.objects.values_list("name", "is_anonymous")) == {
        ("anonymous:10.0.0.1", True),
        ("anonymous:10.0.0.2", True),
    }


def test_young_streams_that_supersede_each_other_are_paced(alice, node):
    outcomes = [admit(candidate(alice, node), cap=1)[0] for _ in range(12)]
    delays = [outcome.seconds if isinstance(outcome, Delay) else 0 for outcome in outcomes]
    # The first supersedes nobody; some eight are free.
    assert delays[:9] == [0] * 9
    assert 0 < delays[10] < delays[11] <= admission.LONGEST_DELAY.total_seconds()
    held = live(alice)
    assert len(held) == 1
    [patient] = admit(candidate(alice, node, has_waited=True), cap=1)
    assert patient.displaced[0].key == held[0]


def test_no_delay_is_longer_than_five_seconds_and_none_is_kept_for_long(alice, node):
    outcomes = admit(*(candidate(alice, node) for _ in range(200)), cap=1)
    delays = [outcome.seconds for outcome in outcomes if isinstance(outcome, Delay)]
    assert max(delays) == admission.LONGEST_DELAY.total_seconds()
    alice.refresh_from_db()
    most = admission.ALLOWANCE + admission.LONGEST_DELAY + admission.INTERVAL
    assert alice.paced_until - timezone.now() <= most


def test_all_streams_of_a_large_cap_may_be_cut_off_and_come_again(alice, node):
    cap = 20
    first = admit(*(candidate(alice, node) for _ in range(cap)), cap=cap)
    again = [admit(candidate(alice, node), cap=cap)[0] for _ in range(cap)]
    assert [outcome.displaced[0].key for outcome in again] == [outcome.key for outcome in first]
    [outcome] = admit(*(candidate(alice, node) for _ in range(cap)), cap=cap)[-1:]
    assert isinstance(outcome, Delay)


def test_superseding_streams_that_lived_is_free(alice, node):
    for _ in range(20):
        [outcome] = admit(candidate(alice, node), cap=1)
        assert isinstance(outcome, Admission)
        age(60)
    alice.refresh_from_db()
    assert alice.paced_until is None


def test_keys_are_had_one_by_one_where_the_database_gives_no_others(alice, node, monkeypatch):
    monkeypatch.setattr(type(connection.features), "can_return_rows_from_bulk_insert", False)
    outcomes = admit(*(candidate(alice, node) for _ in range(3)))
    assert live(alice) == [outcome.key for outcome in outcomes[1:]]
    assert LiveStream.objects.get(pk=outcomes[0].key).reason == "superseded"


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_the_database_gave_up_is_tried_again(alice, node, monkeypatch):
    lock, tries = admission._Batch._lock, []

    def deadlock(batch):
        lock(batch)
        tries.append(1)
        if len(tries) < admission.ATTEMPTS:
            raise OperationalError("deadlock detected")

    monkeypatch.setattr(admission._Batch, "_lock", deadlock)
    [outcome] = admit(candidate(alice, node))
    assert live(alice) == [outcome.key]
    tries.clear()
    monkeypatch.setattr(admission, "ATTEMPTS", 0)
    with pytest.raises(AssertionError):
        admit(candidate(alice, node))


def test_what_a_row_says_is_written(alice, node):
    row = LiveStream(
        node=node,
        endpoint="notes",
        kinds="toolsListChanged",
        uri_count=3,
        client_name="c",
        client_version="1",
        address="::1",
    )
    [outcome] = admit(Candidate(alice, row))
    found = LiveStream.objects.get(pk=outcome.key)
    for name in ("endpoint", "kinds", "uri_count", "client_name", "client_version", "address"):
        assert getattr(found, name) == getattr(row, name)
    assert (found.state, found.delivered, found.last_delivery_at, found.principal) == ("open", 0, None, alice)
    assert abs(timezone.now() - found.opened_at) < timedelta(seconds=10)


STORM = """
import threading
from django.db import connection
from mcp_channels.listen import admission
node, _ = models.Node.objects.get_or_create(id=name, defaults={"host": "h", "pid": 1})
people = list(models.Principal.objects.filter(name__startswith="crowd"))
failures = []

def storm(order):
    try:
        for _ in range(15):
            batch = [admission.Candidate(p, models.LiveStream(node=node, endpoint="e"), has_waited=True) for p in order]
            admission.admit(batch, default_cap=3)
    except Exception as error:
        failures.append(repr(error))
    finally:
        connection.close()

threads = [threading.Thread(target=storm, args=[people if n % 2 else people[::-1]]) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = failures
"""


def test_processes_that_admit_the_same_principals_in_other_orders_hold_no_lock_for_each_other(make_project, postgres):
    project = make_project(DATABASE_URL=postgres.create("storm"))
    project.worker.run("[models.Principal.objects.create(name=f'crowd{n}') for n in range(8)]")
    workers = [project.new_worker(), project.new_worker()]
    found: list = []
    threads = [
        threading.Thread(target=lambda worker=worker, name=name: found.append(worker.run(STORM, name=name)))
        for worker, name in zip(workers, ("a", "b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[], []]
    counts = project.worker.run(
        "from django.db.models import Count\n"
        "rows = models.LiveStream.objects.exclude(state='ending').values_list('principal').annotate(Count('pk'))\n"
        "result = sorted(count for _, count in rows)"
    )
    assert counts == [3] * 8
