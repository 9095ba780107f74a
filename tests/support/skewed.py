"""
The example project on a host whose clock is wrong.
"""

import time

import time_machine


def start(seconds: float) -> None:
    """
    Put this process's clock forward; the monotonic one goes on as it is.
    """
    time_machine.travel(time.time() + seconds, tick=True).start()
