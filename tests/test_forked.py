"""
The processes that tests start: one that was forked is like one that was started.
"""

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from tests.support import forked

ENV = {**os.environ, "PYTHONWARNINGS": "default", "EXTRA": "ä", "TZ": "Asia/Tokyo"}

REPORT = """
import gc, json, os, signal, subprocess, sys, threading, time, warnings

names = [number for number in signal.valid_signals() if number < signal.SIGRTMIN]
streams = [sys.stdin, sys.stdout, sys.stderr]
print(json.dumps({
    "argv": sys.argv,
    "name": [__name__, sys.modules["__main__"].__dict__ is globals()],
    "path": sys.path,
    "env": dict(os.environ),
    "inherited": subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines(),
    "cwd": os.getcwd(),
    "group": [os.getpgid(0), os.getsid(0)],
    "zone": time.tzname,
    "flags": [str(sys.flags), sys.warnoptions, sys._xoptions],
    "warnings": [str(entry) for entry in warnings.filters if entry[0] == "default" and entry[2] is Warning],
    "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in names],
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handles": [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)],
    "streams": [[s.encoding, s.errors, s.line_buffering, s.isatty()] for s in streams],
    "input": sys.stdin.read(),
    "threads": threading.active_count(),
    "collects": [gc.isenabled(), gc.get_threshold()],
}, default=str))
"""

ENDS = """
import atexit, os, random, signal, sys

atexit.register(print, "ended")
print(random.random(), flush=True)
if sys.argv[1] == "raises":
    raise LookupError("something")
if sys.argv[1] == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[1] == "waits":
    print("waits", flush=True)
    signal.pause()
sys.exit(int(sys.argv[1]))
"""

STARTS = """
import os, signal
from tests.support import forked

if __name__ == "__main__":
    process = forked.Process(["-m", "http.server", "--bind", "127.0.0.1", "0"], env=os.environ)
    [server] = forked._servers.values()
    print(process.pid, server._process.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def script(tmp_path):
    """
    A function that writes a script.
    """

    def write(code: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(code)
        return str(path)

    return write


def test_a_forked_process_sees_what_a_started_one_sees(script):
    arguments = [script(REPORT), "--an", "argument"]
    started = subprocess.run(
        [sys.executable, *arguments], cwd=forked.ROOT, env=ENV, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    done = forked.run(arguments, env=ENV, timeout=20)
    assert (started.stderr, done.stderr) == ("", "")
    assert json.loads(done.stdout) == json.loads(started.stdout)


def test_a_forked_process_ends_as_a_started_one_ends(script):
    name = script(ENDS)
    raising, exiting = (forked.run([name, how], env=ENV, timeout=20) for how in ("raises", "3"))
    assert (raising.returncode, exiting.returncode) == (1, 3)
    assert raising.stderr.endswith("LookupError: something\n")
    numbers = []
    for done in (raising, exiting):
        number, rest = done.stdout.splitlines()
        assert rest == "ended"
        numbers.append(number)
    assert numbers[0] != numbers[1]
    assert forked.run([name, "signal"], env=ENV, timeout=20).returncode == -signal.SIGTERM


def test_a_forked_process_is_waited_for_and_signalled(script):
    process = forked.Process([script(ENDS), "waits"], env=ENV, stdout=forked.PIPE, stderr=forked.PIPE)
    with process.stdout, process.stderr:
        assert [process.stdout.readline(), process.stdout.readline()][1] == "waits\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT
        assert process.poll() == process.wait() == -signal.SIGINT
        assert process.stderr.read().endswith("KeyboardInterrupt\n")
        # There is nobody to send it to.
        process.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([script(ENDS), "waits"], env=ENV, timeout=0.01)


def test_processes_die_with_the_one_that_started_them():
    command = [sys.executable, "-c", STARTS]
    with subprocess.Popen(command, cwd=forked.ROOT, env=ENV, stdout=subprocess.PIPE, text=True) as starter:
        try:
            handles = [os.pidfd_open(int(pid)) for pid in starter.stdout.readline().split()]
        finally:
            starter.kill()
    for handle in handles:
        assert select.select([handle], [], [], 20)[0]
        os.close(handle)
    assert len(handles) == 2
