"""How often a program and the daemon woke each other."""

import asyncio
import select

import fipsee
import pytest
from conftest import eventually, frame
from test_threads import together


def test_wakeups_of_daemon_and_program_are_counted_for_all_queues_of_a_disk(daemon):
    with fipsee.open("n", socket=daemon.socket, queues=2, wait="sleep") as disk:
        counts = disk.doorbell_counts
        assert (counts.doorbells, counts.suppressed, counts.wakeups, counts.spurious) == (0, 0, 0, 0)

        def is_counted(what: str) -> bool:
            disk.read(0, 4096)
            return getattr(disk.doorbell_counts, what) > 0

        # Between two looks the daemon has time to fall asleep.
        eventually("the daemon was woken", lambda: is_counted("doorbells"))
        eventually("the program was woken", lambda: is_counted("wakeups"))
        before = disk.doorbell_counts
        together(2, lambda _: [disk.read(0, 4096) for _ in range(200)])
        after = disk.doorbell_counts
        assert after.doorbells >= before.doorbells and after.wakeups >= before.wakeups
        assert after.suppressed == 0 and after.spurious <= after.wakeups
        assert repr(after) == (
            f"<fipsee.DoorbellCounts doorbells={after.doorbells} suppressed=0 wakeups={after.wakeups} spurious={after.spurious}>"
        )
    with pytest.raises(ValueError, match="closed"):
        print(disk.doorbell_counts)


def test_doorbells_that_the_policy_suppressed_are_counted(daemon):
    # One request at a time never is eight, so each waits for the delay.
    with fipsee.open("n", socket=daemon.socket, notify="min_completions=8,max_delay_us=500") as disk:

        def is_suppressed() -> bool:
            disk.read(0, 4096)
            return disk.doorbell_counts.suppressed > 0

        eventually("a doorbell was suppressed", is_suppressed)


def test_wakeups_in_an_event_loop_are_counted(daemon):
    async def run() -> None:
        async with await fipsee.aopen("n", socket=daemon.socket, wait="sleep") as disk:
            assert disk.doorbell_counts.wakeups == 0
            while disk.doorbell_counts.wakeups == 0:
                await disk.read(0, 4096)

    asyncio.run(asyncio.wait_for(run(), 240))


def test_wakeups_with_and_without_a_frame_are_counted(ports):
    a, b = ports

    def wake() -> None:
        assert select.select([b], [], [], 240)[0] == [b]
        b.woken()

    assert not b.arm()
    a.send(frame(b, a, 60))
    wake()
    counts = b.doorbell_counts
    assert (counts.wakeups, counts.spurious, counts.suppressed) == (1, 0, 0)
    assert b.receive(timeout=60) == frame(b, a, 60)
    # The frame is found before the doorbell.
    assert not b.arm()
    a.send(frame(b, a, 61))
    eventually("the frame is there", lambda: b.receive(timeout=0) == frame(b, a, 61))
    wake()
    assert (b.doorbell_counts.wakeups, b.doorbell_counts.spurious) == (2, 1)


def test_port_in_an_event_loop_has_the_same_counts(lan):
    async def run() -> None:
        async with await fipsee.aopen_port("lan/b", socket=lan.socket) as b:
            with fipsee.Port("lan/a", socket=lan.socket) as a:
                waiting = asyncio.create_task(b.receive())
                await asyncio.sleep(0)
                a.send(b.address + a.address + bytes(48))
                assert await waiting == b.address + a.address + bytes(48)
                assert b.doorbell_counts.wakeups == 1

    asyncio.run(asyncio.wait_for(run(), 240))
