"""The daemon dies or is stopped: a clean exception, no hang, and Ctrl-C works."""

import os
import signal
import threading

import fipsee
import numpy as np
import pytest
from conftest import eventually

WAITS = ["adaptive", "poll", "spin", "yield", "sleep"]


@pytest.mark.parametrize("wait", WAITS)
def test_dead_daemon_is_an_exception_again_and_again(own_daemon, wait):
    with fipsee.open("a", socket=own_daemon.socket, wait=wait) as disk:
        memory, array = disk.alloc(4096), disk.array(4096, np.uint8)
        disk.write(0, b"x" * 4096)
        own_daemon.kill()
        for call in (
            lambda: disk.read(0, 512),
            lambda: disk.readinto(0, memory),
            lambda: disk.write(0, array),
            lambda: disk.flush(),
            lambda: disk.read_batch([0] * 100, bytearray(51200), 512),
            lambda: disk.alloc(512),
        ):
            for _ in range(70):
                with pytest.raises(ConnectionError, match="the daemon closed the connection") as caught:
                    call()
                assert isinstance(caught.value, fipsee.DisconnectedError)
        array[:] = 3
        assert disk.size == 64 << 20
    assert disk.closed and bytes(memory) == bytes(4096)


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("copied", [False, True])
def test_daemon_killed_in_the_middle_ends_a_thread_that_uses_it(own_daemon, wait, copied):
    for _ in range(5):
        disk = fipsee.open("a", socket=own_daemon.socket, wait=wait)
        memory = bytearray(1 << 20) if copied else disk.alloc(1 << 20)
        offsets = np.arange(256, dtype=np.uint64) * 4096
        ended, rounds = [], [0]

        def use() -> None:
            try:
                while True:
                    disk.read_batch(offsets, memory, 4096)
                    disk.write(0, memory)
                    rounds[0] += 1
            except fipsee.DisconnectedError as error:
                ended.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        eventually("it is used", lambda: rounds[0] > 3)
        own_daemon.kill()
        thread.join(240)
        assert len(ended) == 1
        disk.close()
        own_daemon.start()


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_for_a_stopped_daemon(own_daemon, wait):
    with fipsee.open("a", socket=own_daemon.socket, wait=wait) as disk:
        memory = disk.alloc(8192)
        disk.write(0, b"1" * 4096 + b"2" * 4096)
        for call in (
            lambda: disk.read(0, 4096),
            lambda: disk.readinto(0, memoryview(memory)[:4096]),
            lambda: disk.read_batch([0] * 1000, bytearray(512000), 512),
            lambda: disk.flush(),
            lambda: disk.write(8192, b"3" * 4096),
        ):
            own_daemon.stop()
            timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                call()
            timer.join()
            own_daemon.go_on()
            # The interrupted requests have ended, and their completions go to no other call.
            assert disk.read(4096, 4096) == b"2" * 4096
        assert disk.readinto(0, memory) == 8192
        assert bytes(memory) == b"1" * 4096 + b"2" * 4096


def test_memory_of_an_interrupted_read_is_kept_until_it_is_answered(own_daemon):
    with fipsee.open("a", socket=own_daemon.socket) as disk:
        disk.write(0, b"1" * 4096)
        memory = disk.alloc(4096)
        own_daemon.stop()
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            disk.readinto(0, memory)
        with pytest.raises(BufferError):
            memory.close()
        own_daemon.go_on()
        disk.flush()
        memory.close()


def test_signal_handler_that_uses_the_waiting_disk_gets_an_error(own_daemon):
    errors = []
    with fipsee.open("a", socket=own_daemon.socket) as disk:
        disk.read(0, 512)

        def handler(number, frame) -> None:
            for use in (lambda: disk.read(0, 512), disk.close):
                try:
                    use()
                except RuntimeError as error:
                    errors.append(str(error))
            own_daemon.go_on()

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            own_daemon.stop()
            timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            timer.start()
            disk.read(0, 512)
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
            own_daemon.go_on()
    assert len(errors) == 2 and all("signal handler" in text for text in errors), errors


def test_disk_that_reconnects_outlives_its_daemon(own_daemon):
    with fipsee.open("b", socket=own_daemon.socket, reconnect=200.0) as disk:
        memory = disk.array((64, 4096), np.uint8)
        offsets = np.arange(64, dtype=np.uint64) * 4096
        for version in range(1, 5):
            memory[:] = version
            own_daemon.stop()
            starter = threading.Thread(target=lambda: (own_daemon.kill(), own_daemon.start()))
            starter.start()
            disk.write_batch(offsets, memory, 4096)
            starter.join()
            memory[:] = 0
            disk.read_batch(offsets, memory, 4096)
            assert (memory == version).all()
            assert disk.read(0, 4096) == bytes([version]) * 4096


def test_disk_that_reconnects_gives_up_and_stops_at_ctrl_c(own_daemon):
    with fipsee.open("b", socket=own_daemon.socket, reconnect=0.05) as disk:
        own_daemon.kill()
        with pytest.raises(ConnectionError):
            disk.read(0, 512)
        own_daemon.start()
    with fipsee.open("b", socket=own_daemon.socket, reconnect=1000.0) as disk:
        own_daemon.kill()
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            disk.read(0, 512)
        timer.join()


def test_answer_that_comes_too_late_is_not_taken_for_another(own_daemon):
    with fipsee.open("a", socket=own_daemon.socket) as disk:
        disk.write(0, b"l" * 4096)
        own_daemon.stop()
        with pytest.raises(TimeoutError, match="is it stopped or overloaded"):
            disk.alloc(4096)
        own_daemon.go_on()
        # The answer to the first request is in transit; it must not be taken for that to the second.
        with pytest.raises(fipsee.DisconnectedError):
            disk.alloc(4096)
