"""One disk, several threads."""

import os
import threading

import fipsee
import pytest
from conftest import eventually


def together(count, work) -> None:
    failed = []

    def one(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not failed and not any(thread.is_alive() for thread in threads), failed


def test_threads_are_placed_by_their_own_call(daemon):
    allowed = os.sched_getaffinity(0)
    with fipsee.open("a", socket=daemon.socket, queues=2) as disk:

        def work(index: int) -> None:
            for _ in range(2):
                cpu = disk.place_thread(index)
                assert os.sched_getaffinity(0) == (allowed if cpu is None else {cpu})
                assert cpu is None or cpu in allowed
            assert (cpu is None) == (len(allowed) == 1)
            disk.read(0, 512)

        together(2, work)
        assert os.sched_getaffinity(0) == allowed
        with pytest.raises(ValueError, match="no queue 2; the disk has 2"):
            disk.place_thread(queue=2)


@pytest.mark.parametrize("queues", [1, 2, 4])
@pytest.mark.parametrize("wait", ["adaptive", "sleep"])
def test_threads_share_a_disk(daemon, queues, wait):
    with fipsee.open("b", socket=daemon.socket, queues=queues, wait=wait) as disk:

        def work(index: int) -> None:
            start, memory = index << 20, disk.alloc(65536)
            offsets = range(start, start + 65536, 4096)
            for version in range(60):
                data = bytes([index * 16 + version % 16]) * 65536
                disk.write(start, data)
                disk.read_batch(offsets, memory, 4096)
                assert memoryview(memory) == data
                disk.write_batch(offsets, data, 4096)
                assert disk.read(start, 65536) == data

        together(6, work)


def test_close_waits_for_threads_and_turns_the_others_away(daemon):
    for _ in range(20):
        disk = fipsee.open("a", socket=daemon.socket, queues=2)
        rounds = [0] * 4

        def work(index: int, disk=disk, rounds=rounds) -> None:
            if index == 0:
                eventually("all are at work", lambda: min(rounds[1:]) > 2)
                disk.close()
                return
            memory = disk.alloc(4096)
            with pytest.raises(ValueError, match="closed"):
                while True:
                    disk.readinto(0, memory)
                    rounds[index] += 1

        together(4, work)
        assert disk.closed


def test_other_threads_run_while_one_waits(own_daemon):
    with fipsee.open("a", socket=own_daemon.socket) as disk:
        disk.write(0, b"t" * 512)
        own_daemon.stop()
        read = []
        waiting = threading.Thread(target=lambda: read.append(disk.read(0, 512)))
        waiting.start()
        for _ in range(3):
            waiting.join(0.05)
            assert waiting.is_alive()
        own_daemon.go_on()
        waiting.join(240)
        assert read == [b"t" * 512]
