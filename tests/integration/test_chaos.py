"""
Copies that clients keep are right after every fault, however many come one after another.
"""

import pytest

from tests.support.broker import Broker
from tests.support.chaos import Chaos
from tests.support.project import LAYERS

FAULTS = {
    "pubsub": ("all cut", "poisoned", "server paused", "subscribers cut", "server killed", "writer killed", "stopped"),
    "core": ("groups forgotten", "filled", "stopped", "server killed", "flushed", "writer killed", "connections cut"),
}


@pytest.mark.parametrize("layer", FAULTS)
async def test_every_copy_is_right_after_every_fault(make_project, own_redis, layer):
    project = make_project(REDIS_URL=own_redis.url, **LAYERS[layer])
    chaos = Chaos(project, Broker(own_redis, layer), clients=8, pause=0.3, seed=4)
    outcome = await chaos.run([(name, 2.0) for name in FAULTS[layer]], calm=lambda: 0.7)
    assert outcome.different == {}
    assert outcome.seconds_to_equal < 10
    assert outcome.unexplained == []
    assert outcome.heard > 50
    for log, (failed, back) in outcome.outages.items():
        assert failed <= len(FAULTS[layer]) * (3 if "worker" in log else 1), outcome.outages
        # A process may have been killed in an outage.
        assert 0 <= failed - back <= 1, outcome.outages
