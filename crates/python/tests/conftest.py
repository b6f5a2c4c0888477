"""The shipped daemon, serving disks for a test; every test is run by tests/acceptance/tests/libraries/python.rs."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import socket as sockets
import subprocess
import time
from collections.abc import Callable, Iterator

import fipsee
import pytest

DEADLINE_S = 240
"""Limit for a machine that hangs; no step is expected to take long."""
# Python lets SIGINT be ignored if it was when it started, as a shell without job control has it for commands in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

FIPSEED = pathlib.Path(os.environ["FIPSEE_DIST"]) / "bin/fipseed"


def eventually(what: str, is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.001)


class Daemon:
    def __init__(
        self, directory: pathlib.Path, *disks: str, wait: str = "adaptive", config: pathlib.Path | None = None
    ) -> None:
        self.socket = directory / "s"
        given = [f"--disk={disk.replace('DIR', str(directory))}" for disk in disks]
        given += [f"--config={config}"] if config else []
        self._command = [FIPSEED, "--log-level=error", f"--listen={self.socket}", f"--wait={wait}", *given]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        eventually("the daemon listens", self._listens)

    def _listens(self) -> bool:
        assert self._process.poll() is None, "the daemon ended"
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the process (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal was sent, but threads on other CPUs stop a little later.
        status = pathlib.Path(f"/proc/{self.pid}/task")
        eventually("the daemon is stopped", lambda: all("\nState:\tT" in read(task / "status") for task in status.iterdir()))

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def read(path: pathlib.Path) -> str:
    return path.read_text()


DISKS = ("a=memory:64M", "b=file:DIR/b.img,size=64M", "n=null:1G", "r=memory:1M,ro")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """For tests that do not change it."""
    served = Daemon(tmp_path_factory.mktemp("daemon"), *DISKS)
    yield served
    served.kill()


@pytest.fixture
def own_daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """To be killed and stopped."""
    served = Daemon(tmp_path, *DISKS)
    yield served
    served.kill()


def mappings() -> int:
    """Memory that this process shares with daemons, other than channels."""
    gc.collect()  # What another test left in a cycle would go at some moment.
    return read(pathlib.Path("/proc/self/maps")).count("memfd:fipsee-memory")


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(read(pathlib.Path("/proc/self/statm")).split()[1]) * os.sysconf("SC_PAGE_SIZE")


NETWORK = """
[[network]]
name = "lan"
mtu = 9000
[[network.port]]
name = "a"
mac = "02:00:00:00:00:0a"
[[network.port]]
name = "b"
mac = "02:00:00:00:00:0b"
"""


@pytest.fixture
def lan(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A network with two ports."""
    (tmp_path / "f.toml").write_text(NETWORK)
    served = Daemon(tmp_path, config=tmp_path / "f.toml")
    yield served
    served.kill()


@pytest.fixture
def ports(lan: Daemon) -> Iterator[tuple[fipsee.Port, fipsee.Port]]:
    with fipsee.Port("lan/a", socket=lan.socket) as a, fipsee.Port("lan/b", socket=lan.socket, buffer_size=512) as b:
        yield a, b


def frame(to: fipsee.Port, source: fipsee.Port, length: int, seed: int = 0) -> bytes:
    return (to.address + source.address + b"\x88\xb5" + bytes((seed + index) % 256 for index in range(length)))[:length]
