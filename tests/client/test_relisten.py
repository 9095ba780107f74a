"""
Delays, without waiting for them.
"""

import asyncio
import random
from collections import Counter

import pytest

from mcp_channels.client import ConnectionLostError, Filter, Reconnecting, Relisten, Subscription
from mcp_channels.client.relisten import LONGEST_RETRY_AFTER, Backoff, parse_retry_after
from mcp_channels.client.tasks import Tasks


def test_a_thousand_clients_that_lose_a_server_together_do_not_come_back_together():
    for retry_after in (None, 5.0):
        backoffs = [Backoff(Relisten(), rng=random.Random(seed)) for seed in range(1000)]
        delays = [backoff.delay(0.0, retry_after=retry_after) for backoff in backoffs]
        first = retry_after or 0.0
        assert first <= min(delays) < max(delays) <= first + 2.0
        tenths = Counter(int(delay * 10) for delay in delays)
        # 5 % each, were they exactly even; nobody's second holds more than about half of them.
        assert len(tenths) >= 20
        assert max(tenths.values()) <= 80
        assert all(
            sum(start <= delay < start + 1 for delay in delays) < 600 for start in (first, first + 0.5, first + 1)
        )
        # Those that find nobody there are spread further each time, and still after the longest delay.
        for _ in range(6):
            delays = [backoff.delay(0.0) for backoff in backoffs]
        assert max(Counter(int(delay) for delay in delays).values()) <= 60


def test_delays_double_up_to_the_longest_and_start_anew_after_a_healthy_stream():
    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    backoff = Backoff(Relisten(first_delay=1, longest_delay=10, healthy_after=5), rng=Highest())
    assert [backoff.delay(0) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.lasted(4.9)
    assert backoff.delay(0) == 10
    backoff.lasted(5.0)
    assert backoff.delay(0) == 1
    assert backoff.delay(0, retry_after=7) == 9
    assert backoff.delay(0, retry_after=1e9) == LONGEST_RETRY_AFTER + 4
    assert [Backoff(Relisten(first_delay=0)).delay(0) > 0 for _ in range(3)] == [True] * 3


def test_the_budget_counts_from_the_last_healthy_stream():
    backoff = Backoff(Relisten(attempts=2))
    assert [backoff.delay(0) is None for _ in range(3)] == [False, False, True]
    backoff.lasted(60)
    assert backoff.delay(0) is not None
    backoff = Backoff(Relisten(first_delay=0.1, seconds=10))
    assert [backoff.delay(now) is None for now in (100, 105, 109, 111)] == [False, False, False, True]
    backoff.lasted(60)
    assert backoff.delay(200) is not None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 60),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        ("²", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value, seconds):
    assert parse_retry_after(value, now=60) == seconds


class Cut:
    """
    A server without sockets, which acknowledges, and cuts all streams at once.
    """

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.cut = asyncio.Event()
        self.again: list[float] = []

    def new_id(self) -> int:
        return 1

    async def messages(self, request_id: int, requested: Filter, *, endless: bool):
        if self.cut.is_set():
            self.again.append(asyncio.get_running_loop().time())
        meta = {"io.modelcontextprotocol/subscriptionId": 1}
        params = {"notifications": requested.to_wire(), "_meta": meta}
        yield {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        await (asyncio.Event() if self.cut.is_set() else self.cut).wait()
        raise ConnectionLostError("cut")

    async def invalidate(self, event: object) -> None:
        pass

    def announce(self, event: object) -> None:
        pass


async def started(subscription: Subscription) -> list[Reconnecting]:
    """
    Its word that it will be back, from its first events.
    """
    return [event for event in [await anext(subscription) for _ in range(3)] if isinstance(event, Reconnecting)]


async def test_a_thousand_subscriptions_that_are_cut_together_come_back_one_after_the_other():
    server = Cut()
    subscriptions = [
        Subscription(
            server,
            Filter(kinds=("toolsListChanged",)),
            ack_timeout=None,
            default_ack_timeout=10,
            relisten=Relisten(),
            on_closed=lambda subscription: None,
        )
        for _ in range(1000)
    ]
    for subscription in subscriptions:
        subscription.start()
    for subscription in subscriptions:
        await subscription.wait_acknowledged()
    start = asyncio.get_running_loop().time()
    server.cut.set()
    async with asyncio.timeout(10):
        while len(server.again) < len(subscriptions):
            await asyncio.sleep(0.05)
    quarters = Counter(int((moment - start) * 4) for moment in server.again)
    print("\nreturns in each quarter of a second:", [quarters[number] for number in range(max(quarters) + 1)])
    # Whatever holds up the test, the delays are what they were drawn as: evenly, a quarter has 125 of them.
    assert max(server.again) - start > 1.5
    delays = [event.delay for subscription in subscriptions for event in await started(subscription)]
    assert len(delays) == len(subscriptions)
    assert max(Counter(int(delay * 4) for delay in delays).values()) < 200
    await server.tasks.close()
