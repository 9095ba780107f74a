"""
Being let in: the most streams that a principal may hold, over all processes that share the database.

One short transaction serialises the admissions of a principal. A row lock does it where the database has one (always
taken in the order of keys, so that no two transactions wait for each other); on SQLite the first write does. What
arrives together in a process shares one transaction. Order and age come from the database: keys are in order of
admission, and its clock is the only one that is asked.

One stream too many is let in, and the principal's oldest is superseded. A principal whose streams supersede each other
over and over (two clients that each re-listen at once) is paced: past a small allowance its admissions are made to
wait, one a second.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import IntegrityError, OperationalError, connections, models, router, transaction
from django.db.models import Count, Q
from django.db.models.functions import Now
from django.utils import timezone

from mcp_channels.models import LiveStream, Principal

YOUNG: Final = timedelta(seconds=30)
"""The age under which a stream's supersession counts against its principal."""

INTERVAL: Final = timedelta(seconds=1)
"""The time between two admissions of a paced principal."""

ALLOWANCE: Final = timedelta(seconds=8)
"""
What a principal may take in advance: so many admissions, of ``INTERVAL`` each, before it is paced. Whose cap is larger
may take that many: all its streams may have been cut off at once, and come again.
"""

LONGEST_DELAY: Final = timedelta(seconds=5)
"""The most that an admission is made to wait."""

LISTENED_RESOLUTION: Final = timedelta(minutes=1)
"""How exact ``last_listened_at`` is: most admissions save a write."""

ATTEMPTS: Final = 3
"""How often a transaction is tried that the database gave up, for a deadlock or a conflict."""

_WRITTEN: Final = frozenset(
    {"principal_id", "token_id", "node_id", "state", "reason", "endpoint", "kinds", "uri_count"}
    | {"client_name", "client_version", "address", "delivered"}
)
"""What is written of a new row; the database fills in the rest."""


class NotAdmittedError(Exception):
    """
    The principal may hold no stream.
    """


class _VanishedError(Exception):
    """
    An anonymous caller's principal was forgotten at this very moment.
    """


class Candidate(NamedTuple):
    """
    A stream that asks to be let in.
    """

    principal: Principal
    """Whose it is; unsaved for anonymous callers, whose row is found by its name."""

    row: LiveStream
    """The row to be, without its principal."""

    has_waited: bool = False
    """Whether it was told to wait, and has."""


class Displaced(NamedTuple):
    """
    A stream that another one supersedes.
    """

    key: int
    node: str


class Admission(NamedTuple):
    """
    A stream is let in.
    """

    key: int
    """The key of its row."""

    principal: int
    """The key of its principal."""

    displaced: tuple[Displaced, ...] = ()
    """The streams that have to end first."""

    is_superseded: bool = False
    """Whether one that arrived together with it supersedes it already."""


class Delay(NamedTuple):
    """
    The candidate is to come again after so many seconds.
    """

    seconds: float


Outcome = Admission | Delay | Exception


def admit(candidates: Sequence[Candidate], *, default_cap: int) -> list[Outcome]:
    """
    Decide on candidates, in the order in which they came. An outcome is an ``Admission``, a ``Delay``, a
    ``NotAdmittedError``, or the database's word that what the candidate rests on is gone. Blocks.
    """
    using = router.db_for_write(LiveStream)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            owners = _owners(candidates, using)
            with transaction.atomic(using=using):
                return _Batch(using, candidates, owners, default_cap).admit()
        except (OperationalError, _VanishedError):
            if attempt == ATTEMPTS or connections[using].in_atomic_block:
                raise
        except IntegrityError:
            if len(candidates) == 1:
                raise
            # A token that one of them showed was deleted meanwhile: that is no trouble of the others.
            return [_admit_alone(candidate, default_cap) for candidate in candidates]
    raise AssertionError("not reached")  # the last attempt returns or raises


def _admit_alone(candidate: Candidate, default_cap: int) -> Outcome:
    try:
        return admit([candidate], default_cap=default_cap)[0]
    except IntegrityError as error:
        return error


def _owners(candidates: Iterable[Candidate], using: str) -> list[Principal]:
    """
    The saved principal of each candidate. Anonymous callers' are made where they are missing.
    """
    names = sorted({item.principal.name for item in candidates if item.principal.pk is None})
    found: dict[str, Principal] = {}
    if names:
        known = Principal.objects.using(using).filter(name__in=names)
        found = {principal.name: principal for principal in known}
        if missing := [name for name in names if name not in found]:
            # Another process may make them at the same time.
            rows = [Principal(name=name, is_anonymous=True) for name in missing]
            Principal.objects.using(using).bulk_create(rows, ignore_conflicts=True)
            found = {principal.name: principal for principal in known.all()}
    return [item.principal if item.principal.pk is not None else found[item.principal.name] for item in candidates]


class _Live(NamedTuple):
    key: int | None
    """None for one of this batch."""
    node: str
    is_young: bool
    place: int = -1
    """Its place in the batch, if it is of it."""


class _Batch:
    """
    One transaction.
    """

    def __init__(
        self, using: str, candidates: Sequence[Candidate], owners: Sequence[Principal], default_cap: int
    ) -> None:
        self.using = using
        self.candidates = candidates
        self.owners = owners
        # The last that was loaded is the newest.
        self.principals = {owner.pk: owner for owner in owners}
        self.caps = {
            key: default_cap if owner.max_streams is None else owner.max_streams
            for key, owner in self.principals.items()
        }
        self.streams = LiveStream.objects.using(using)
        self.outcomes: list[Outcome | None] = [None] * len(candidates)
        self.paced: dict[int, tuple[datetime, datetime | None]] = {}
        self.paced_before: dict[int, tuple[datetime, datetime | None]] = {}

    def admit(self) -> list[Outcome]:
        self._lock()
        self._refuse()
        live = self._load_live()
        admitted: list[int] = []
        waits_for: dict[int, list[_Live]] = {}
        superseded: set[int] = set()
        gone: list[int] = []
        for index, owner in enumerate(self.owners):
            if self.outcomes[index] is not None:
                continue
            cap, held = self.caps[owner.pk], live.get(owner.pk)
            if held is not None:
                over = held[: max(0, len(held) + 1 - cap)]
                if any(stream.is_young for stream in over) and (delay := self._pace(index, owner.pk)) is not None:
                    self.outcomes[index] = delay
                    continue
                del held[: len(over)]
                held.append(_Live(None, self.candidates[index].row.node_id, is_young=True, place=index))
                waits_for[index] = over
                superseded.update(stream.place for stream in over if stream.key is None)
                gone.extend(stream.key for stream in over if stream.key is not None)
            admitted.append(index)
        rows = self._insert(admitted, superseded)
        if gone:
            self.streams.filter(pk__in=gone).update(state=LiveStream.State.ENDING, reason="superseded")
        self._write_pacing()
        for index in admitted:
            displaced = tuple(
                Displaced(rows[stream.place].pk if stream.key is None else stream.key, stream.node)
                for stream in waits_for.get(index, ())
            )
            self.outcomes[index] = Admission(
                rows[index].pk, self.owners[index].pk, displaced, is_superseded=index in superseded
            )
        return [outcome for outcome in self.outcomes if outcome is not None]

    def _lock(self) -> None:
        keys = sorted(self.principals)
        rows = Principal.objects.using(self.using).filter(pk__in=keys)
        stale = [key for key, owner in self.principals.items() if _is_stale(owner)]
        # What was loaded before may be old: a principal that was deactivated meanwhile holds no stream.
        # A write locks as well; of several rows it would not take them in order.
        is_written = len(stale) == len(keys) == 1 or not connections[self.using].features.has_select_for_update
        if not is_written:
            active = dict(rows.select_for_update().order_by("pk").values_list("pk", "is_active"))
            if stale:
                rows.filter(pk__in=stale).update(last_listened_at=Now())
        elif rows.filter(is_active=True).update(last_listened_at=Now()) == len(keys):
            active = dict.fromkeys(keys, True)
        else:
            active = dict(rows.values_list("pk", "is_active"))
        for key in keys:
            if key not in active and self.principals[key].is_anonymous:
                raise _VanishedError
            if not active.get(key):
                self.caps[key] = 0

    def _refuse(self) -> None:
        for index, owner in enumerate(self.owners):
            if self.caps[owner.pk] < 1:
                self.outcomes[index] = NotAdmittedError("This principal may hold no listen streams.")

    def _load_live(self) -> dict[int, list[_Live]]:
        """
        The live streams, oldest first, of those principals that go over their caps.
        """
        asked: dict[int, int] = {}
        for index, owner in enumerate(self.owners):
            if self.outcomes[index] is None:
                asked[owner.pk] = asked.get(owner.pk, 0) + 1
        held = dict(
            self.streams.going_on()
            .filter(principal__in=list(asked))
            .order_by()
            .values_list("principal")
            .annotate(Count("pk"))
        )
        over = [key for key, count in asked.items() if held.get(key, 0) + count > self.caps[key]]
        live: dict[int, list[_Live]] = {key: [] for key in over}
        if any(held.get(key) for key in over):
            streams = self.streams.going_on().filter(principal__in=over).order_by("pk").annotate(is_young=_is_young())
            for owner_key, key, node, is_young in streams.values_list("principal", "pk", "node", "is_young"):
                live[owner_key].append(_Live(key, node, bool(is_young)))
        if over:
            owners = Principal.objects.using(self.using).filter(pk__in=over).annotate(now=Now())
            self.paced = {key: (now, until) for key, now, until in owners.values_list("pk", "now", "paced_until")}
            self.paced_before = dict(self.paced)
        return live

    def _pace(self, index: int, owner: int) -> Delay | None:
        """
        Account for one supersession of a young stream; how long the candidate has to wait for it, if it has.
        """
        if self.candidates[index].has_waited:
            return None
        now, until = self.paced[owner]
        ahead = max(until - now, timedelta(0)) if until is not None else timedelta(0)
        allowance = max(ALLOWANCE, self.caps[owner] * INTERVAL)
        self.paced[owner] = (now, now + min(ahead, allowance + LONGEST_DELAY) + INTERVAL)
        wait = min(ahead - allowance, LONGEST_DELAY)
        return Delay(wait.total_seconds()) if wait > timedelta(0) else None

    def _write_pacing(self) -> None:
        for owner, paced in self.paced.items():
            if paced != self.paced_before[owner]:
                Principal.objects.using(self.using).filter(pk=owner).update(paced_until=paced[1])

    def _insert(self, admitted: Sequence[int], superseded: set[int]) -> dict[int, LiveStream]:
        rows = {}
        for index in admitted:
            row = rows[index] = self.candidates[index].row
            row.principal_id = self.owners[index].pk
            # An attempt that was rolled back may have left its mark.
            row.pk, row.state, row.reason = None, LiveStream.State.OPEN, ""
            if index in superseded:
                row.state, row.reason = LiveStream.State.ENDING, "superseded"
        if connections[self.using].features.can_return_rows_from_bulk_insert:
            _insert(self.using, list(rows.values()))
        else:
            for row in rows.values():
                row.save(using=self.using, force_insert=True)
        return rows


def _insert(using: str, rows: Sequence[LiveStream]) -> None:
    """
    Write new rows, and set their keys. ``bulk_create`` takes many times as long, and every stream waits for this.
    """
    if not rows:
        return
    connection = connections[using]
    quote = connection.ops.quote_name
    fields = [field for field in LiveStream._meta.concrete_fields if field.attname in _WRITTEN]
    columns = ", ".join(quote(str(field.column)) for field in fields)
    places = f"({', '.join(['%s'] * len(fields))})"
    table, key = quote(LiveStream._meta.db_table), quote(str(LiveStream._meta.pk.column))
    sql = f"INSERT INTO {table} ({columns}) VALUES {', '.join([places] * len(rows))} RETURNING {key}"  # noqa: S608  # the model's own names
    names = [field.attname for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(sql, [getattr(row, name) for row in rows for name in names])
        for row, (found,) in zip(rows, cursor.fetchall(), strict=True):
            row.pk = found


def _is_young() -> Any:
    return models.ExpressionWrapper(Q(opened_at__gt=Now() - YOUNG), output_field=models.BooleanField())


def _is_stale(owner: Principal) -> bool:
    # By this host's clock: a skew makes it written more or less often, and nothing else.
    last = owner.last_listened_at
    return last is None or abs(timezone.now() - last) >= LISTENED_RESOLUTION
