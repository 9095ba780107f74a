"""
The way to the layer, from threads and loops.
"""

import asyncio
import os
import threading
import time

import pytest
from channels.layers import InMemoryChannelLayer

from mcp_channels import publisher as module, signals, telemetry, topics
from mcp_channels.publisher import MAX_WAITING, Publisher
from mcp_channels.topics import TOOLS, resource


class Layer(InMemoryChannelLayer):
    """
    Records what is sent, and fails when told to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict]] = []
        self.threads: set[str] = set()
        self.broken = False
        self.delay = 0.0

    async def group_send(self, group: str, message: dict) -> None:
        await asyncio.sleep(self.delay)
        if self.broken:
            raise ConnectionError("down")
        self.threads.add(threading.current_thread().name)
        self.sent.append((group, message))

    @property
    def topics(self) -> list[topics.Topic]:
        changes = [message for _, message in self.sent if message["type"] == topics.CHANGED]
        return [topic for message in changes for topic in topics.read_changed(message)]


@pytest.fixture
def layer(monkeypatch):
    layer = Layer()
    monkeypatch.setattr(module, "get_channel_layer", lambda alias: layer)
    return layer


@pytest.fixture
def publisher(layer):
    publisher = Publisher()
    yield publisher
    publisher.stop()


def test_a_thread_without_a_loop_publishes(publisher, layer):
    publisher.publish([TOOLS])
    assert publisher.flush(5)
    assert layer.sent == [(TOOLS.group, topics.changed_message([TOOLS]))]
    assert layer.threads == {"mcp_channels-publisher"}


def test_many_threads_lose_nothing(publisher, layer):
    uris = [resource(str(number)) for number in range(1000)]
    threads = [
        threading.Thread(target=lambda n=n: [publisher.publish([uri]) for uri in uris[n::10]]) for n in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert publisher.flush(5)
    assert set(layer.topics) == set(uris)


def test_few_topics_travel_by_their_groups_and_many_together(publisher, layer):
    publisher.publish([resource(str(number)) for number in range(3)])
    publisher.flush(5)
    assert [group for group, _ in layer.sent] == [resource(str(number)).group for number in range(3)]
    layer.sent.clear()
    publisher.publish([resource(str(number)) for number in range(300)])
    publisher.flush(5)
    assert [group for group, _ in layer.sent] == [topics.EVERY_HUB]
    assert len(layer.topics) == 300


def test_on_a_bounded_layer_all_messages_are_numbered_and_the_last_is_told_again(publisher, layer, monkeypatch):
    monkeypatch.setattr(module.layers, "is_bounded", lambda layer: True)
    monkeypatch.setattr(module, "REMINDERS", (0.05, 0.05))
    for number in range(3):
        publisher.publish([resource(str(number))])
        assert publisher.flush(5)
    time.sleep(0.3)
    assert {group for group, _ in layer.sent} == {topics.EVERY_HUB}
    numbers = [(message["type"], message["number"]) for _, message in layer.sent]
    assert numbers[:3] == [(topics.CHANGED, 1), (topics.CHANGED, 2), (topics.CHANGED, 3)]
    assert set(numbers[3:]) == {(topics.SEQUENCE, 3)}
    assert layer.sent[0][1]["since"] is None
    assert 0 <= layer.sent[1][1]["since"] < 1
    layer.sent.clear()
    publisher.publish([TOOLS])
    publisher.stop()
    numbers = [(message["type"], message["number"]) for _, message in layer.sent]
    assert numbers[0] == (topics.CHANGED, 4)
    assert set(numbers[1:]) == {(topics.SEQUENCE, 4)}


def test_what_waits_is_a_set(publisher, layer):
    layer.delay = 0.1
    publisher.publish([resource("first")])
    time.sleep(0.05)
    for _ in range(1000):
        publisher.publish([TOOLS])
    assert publisher.flush(5)
    assert layer.topics == [resource("first"), TOOLS]


def test_a_broken_layer_neither_raises_nor_waits_and_loses_nothing(publisher, layer, caplog):
    layer.broken = True
    started = time.perf_counter()
    for number in range(50):
        publisher.publish([resource(str(number))])
    assert time.perf_counter() - started < 0.5
    assert not publisher.flush(0.5)
    layer.broken = False
    assert publisher.flush(5)
    assert set(layer.topics) == {resource(str(number)) for number in range(50)}
    assert caplog.text.count("The channel layer failed") == 1
    assert caplog.text.count("The channel layer is back") == 1
    assert publisher.failed >= 1


def test_what_waits_is_bounded(publisher, layer):
    layer.broken = True
    publisher.publish([resource(str(number)) for number in range(MAX_WAITING + 1)])
    publisher.publish([TOOLS])
    layer.broken = False
    assert publisher.flush(5)
    assert (topics.EVERY_HUB, {"type": topics.RESYNC}) in layer.sent
    assert len(layer.sent) <= 2


async def test_a_hubs_loop_is_preferred(publisher, layer):
    publisher.adopt(asyncio.get_running_loop())
    await asyncio.to_thread(publisher.publish, [TOOLS])
    assert await asyncio.to_thread(publisher.flush, 5)
    assert layer.threads == {threading.current_thread().name}


def test_a_loop_that_is_gone_is_replaced(publisher, layer):
    async def main() -> None:
        publisher.adopt(asyncio.get_running_loop())
        publisher.publish([TOOLS])

    asyncio.run(main())
    publisher.publish([resource("a")])
    assert publisher.flush(5)
    assert set(layer.topics) == {TOOLS, resource("a")}


def test_what_a_loop_left_behind_leaves_before_the_process_ends(publisher, layer):
    async def main() -> None:
        publisher.adopt(asyncio.get_running_loop())
        publisher.publish([TOOLS])

    asyncio.run(main())
    publisher.stop()
    assert layer.topics == [TOOLS]


async def test_publishing_on_a_running_loop_does_not_block_it(publisher, layer):
    layer.delay = 0.2
    started = time.perf_counter()
    publisher.publish([TOOLS])
    assert time.perf_counter() - started < 0.1
    assert await asyncio.to_thread(publisher.flush, 5)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_starts_anew(publisher, layer, monkeypatch):
    monkeypatch.setattr(module, "publisher", publisher)
    publisher.publish([TOOLS])
    publisher.flush(5)
    os.register_at_fork(after_in_child=publisher.reset)
    pid = os.fork()
    if pid == 0:
        layer.sent.clear()
        publisher.publish([resource("child")])
        done = publisher.flush(5) and layer.topics == [resource("child")]
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_a_layer_can_not_carry_holds_nothing_else_up(publisher, layer, caplog):
    send = layer.group_send

    async def picky(group: str, message: dict) -> None:
        if "bad" in str(message):
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")
        await send(group, message)

    layer.group_send = picky
    publisher.publish([resource("bad")])
    publisher.publish([resource("good")])
    assert publisher.flush(5)
    publisher.publish([TOOLS])
    assert publisher.flush(5)
    assert (topics.EVERY_HUB, {"type": topics.RESYNC}) in layer.sent
    assert TOOLS in layer.topics
    assert "can't carry a notification" in caplog.text


def test_without_a_layer_it_says_so(publisher, monkeypatch, caplog):
    monkeypatch.setattr(module, "get_channel_layer", lambda alias: None)
    publisher.publish([TOOLS])
    assert publisher.flush(5)
    assert "No channel layer 'default' is configured" in caplog.text


def test_a_signal_tells_of_what_was_published_by_kind_alone(publisher, layer):
    seen = {}

    def receiver(sender, signal, **kwargs):
        seen.update(kwargs)

    signals.notification_published.connect(receiver)
    try:
        publisher.publish([resource("note://secret"), TOOLS, resource("note://other")])
        assert publisher.flush(5)
        assert telemetry.flush(5)
    finally:
        signals.notification_published.disconnect(receiver)
    assert seen.pop("at") > 0
    assert seen == {"kinds": ("resource", "tools"), "count": 3, "counts": {"resource": 2, "tools": 1}}
