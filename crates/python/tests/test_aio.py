"""One queue, many awaits."""

import asyncio
import errno
import gc
import random
import time

import fipsee
import numpy as np
import pytest
from conftest import DEADLINE_S, descriptors, mappings


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, DEADLINE_S))


@pytest.mark.parametrize("wait", ["adaptive", "poll", "spin", "yield", "sleep"])
@pytest.mark.parametrize("depth", [1, 64])
def test_thousand_concurrent_reads_bring_each_its_block(daemon, wait, depth):
    async def main() -> None:
        async with await fipsee.aopen("a", socket=daemon.socket, wait=wait, depth=depth) as disk:
            assert (disk.name, disk.size, disk.block_size, disk.read_only, disk.closed) == ("a", 64 << 20, 512, False, False)
            data = random.Random(1).randbytes(1000 * 4096)
            assert await disk.write(0, data) == len(data)
            await disk.flush()
            order = random.Random(2).sample(range(1000), 1000)
            blocks = await asyncio.gather(*(disk.read(block * 4096, 4096) for block in order))
            assert all(blocks[i] == data[block * 4096 : (block + 1) * 4096] for i, block in enumerate(order))
            array = disk.array((1000, 4096), np.uint8)
            before = mappings()
            await asyncio.gather(*(disk.readinto(block * 4096, array[i]) for i, block in enumerate(order)))
            assert mappings() == before
            assert all(array[i].tobytes() == blocks[i] for i in range(1000))
        assert disk.closed

    run(main())


@pytest.mark.parametrize("name", ["a", "b"])
def test_everything_that_a_disk_does_can_be_awaited(daemon, name):
    async def main() -> None:
        async with await fipsee.aopen(name, socket=str(daemon.socket)) as disk:
            data = random.Random(3).randbytes((5 << 20) + 1536)
            memory = disk.alloc(len(data))
            view = memoryview(memory)
            for source in (data, bytearray(data), np.frombuffer(data, np.uint8), view):
                view[:] = data
                await disk.write(0, bytes(len(data)))
                assert await disk.write(0, source, fua=True) == len(data)
                assert await disk.read(0, len(data)) == data
                view[:] = bytes(len(data))
                assert await disk.readinto(0, memory) == len(data)
                assert view == data
            into = bytearray(len(data) + 1)
            await disk.readinto(0, memoryview(into)[1:])
            assert into[1:] == data
            await disk.readinto(512, view[512:1024])
            await disk.write_zeroes(512, 1024, unmap=True)
            await disk.discard(4096, 4096)
            await disk.flush()
            assert await disk.read(0, 2048) == data[:512] + bytes(1024) + data[1536:2048]
            assert await disk.read(0, 0) == b"" and await disk.write(0, b"") == 0
            assert "write" in disk.capabilities

    run(main())


def test_long_transfers_share_a_short_queue(daemon):
    async def main() -> None:
        async with await fipsee.aopen("b", socket=daemon.socket, depth=2) as disk:
            length = (3 << 20) + 512
            written = [random.Random(i).randbytes(length) for i in range(3)]
            await asyncio.gather(
                *(disk.write(i * length, data) for i, data in enumerate(written)),
                *(disk.write_zeroes(start << 20, 24 << 20) for start in (16, 40)),
                *(disk.read(60 << 20, 512) for _ in range(20)),
            )
            assert await asyncio.gather(*(disk.read(i * length, length) for i in range(3))) == written
            assert await disk.read(16 << 20, 48 << 20) == bytes(48 << 20)
            # What fails ends with its last request in flight.
            with pytest.raises(fipsee.Error) as failed:
                await disk.write(disk.size - (1 << 20), b"f" * (4 << 20))
            assert failed.value.errno == errno.ENXIO
            assert await disk.read(disk.size - (1 << 20), 1 << 20) == b"f" * (1 << 20)
            # Of what is cancelled, no more is begun.
            task = asyncio.create_task(disk.write(0, bytes(disk.size)))
            while disk._queue.outstanding() < 2:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await disk.read(disk.size - 4096, 4096) == b"f" * 4096
            assert await disk.read(0, 4096) == bytes(4096)

    run(main())


def test_wrong_requests_fail_alone(daemon):
    async def main() -> None:
        async with await fipsee.aopen("a", socket=daemon.socket) as disk:
            outcomes = await asyncio.gather(
                disk.read(disk.size, 4096),
                disk.read(1, 512),
                disk.read(0, 4096),
                disk.readinto(0, bytes(512)),
                disk.read(-512, 512),
                disk.read("0", 512),
                disk.write(0, "text"),
                disk.readinto(0, np.zeros((512, 512), np.uint8)[::2]),
                disk.read(disk.size - 4096, 1 << 20),
                disk.read(0, 512),
                return_exceptions=True,
            )
            kinds = [type(outcome) for outcome in outcomes]
            assert kinds == [
                fipsee.Error, fipsee.Error, bytes, TypeError, OverflowError, TypeError, TypeError, BufferError, fipsee.Error, bytes,
            ], outcomes  # fmt: skip
            assert [outcomes[i].errno for i in (0, 1, 8)] == [errno.ENXIO, errno.EINVAL, errno.ENXIO]
        with pytest.raises(ValueError, match="the disk is closed"):
            await disk.read(0, 512)
        with pytest.raises(FileNotFoundError):
            await fipsee.aopen("zebra", socket=daemon.socket)
        await disk.close()

    run(main())


def test_cancelled_reads_leave_the_disk_and_the_memory_intact(own_daemon):
    async def main() -> None:
        async with await fipsee.aopen("a", socket=own_daemon.socket, depth=8) as disk:
            await disk.write(0, b"c" * 65536)
            before = mappings()
            own_daemon.stop()
            tasks = [asyncio.create_task(disk.read(0, 4096)) for _ in range(50)]
            tasks += [asyncio.create_task(disk.readinto(0, bytearray(4096))) for _ in range(50)]
            while disk._queue.outstanding() < 8:
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(disk.flush(), 0.01)
            own_daemon.go_on()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
            assert all(outcome in (b"c" * 4096, 4096) for outcome in outcomes[1::2])
            # Memory of a cancelled read is not released before the daemon has unmapped it.
            memory = disk.alloc(4096)
            assert mappings() == before + 1
            own_daemon.stop()
            task = asyncio.create_task(disk.readinto(0, memory))
            while disk._queue.outstanding() < 1:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(BufferError):
                memory.close()
            del memory, task
            gc.collect()
            assert mappings() == before + 1
            own_daemon.go_on()
            await disk.flush()
            while disk._queue.outstanding() > 0:
                await asyncio.sleep(0)
            gc.collect()
            assert mappings() == before
            assert await disk.read(0, 4096) == b"c" * 4096

    run(main())


def test_random_cancellation_loses_no_request(daemon):
    async def main() -> None:
        draw = random.Random(7)
        async with await fipsee.aopen("a", socket=daemon.socket, depth=4) as disk:
            await disk.write(0, b"".join(bytes([block]) * 4096 for block in range(64)))

            async def one() -> None:
                block = draw.randrange(64)
                try:
                    data = await asyncio.wait_for(disk.read(block * 4096, 4096), draw.choice([None, 0, 1e-5, 1e-4]))
                    assert data == bytes([block]) * 4096
                except asyncio.TimeoutError:
                    pass

            for _ in range(40):
                await asyncio.gather(*(one() for _ in range(50)))

    run(main())


def test_close_waits_for_what_was_begun(daemon):
    async def main() -> None:
        disk = await fipsee.aopen("b", socket=daemon.socket)
        tasks = [asyncio.create_task(disk.write(block * 4096, b"e" * 4096)) for block in range(500)]
        await asyncio.sleep(0)
        await disk.close()
        assert await asyncio.gather(*tasks) == [4096] * 500
        with fipsee.open("b", socket=daemon.socket, exclusive=True) as check:
            assert check.read(0, 500 * 4096) == b"e" * 500 * 4096

    run(main())


@pytest.mark.parametrize("wait", ["adaptive", "poll", "spin", "yield", "sleep"])
def test_death_of_the_daemon_ends_every_await(own_daemon, wait):
    async def main() -> None:
        async with await fipsee.aopen("a", socket=own_daemon.socket, wait=wait, depth=16) as disk:
            await disk.read(0, 512)
            own_daemon.stop()
            tasks = [asyncio.create_task(disk.read(0, 4096)) for _ in range(100)]
            while disk._queue.outstanding() < 16:
                await asyncio.sleep(0)
            own_daemon.kill()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, fipsee.DisconnectedError) for outcome in outcomes), outcomes
            for _ in range(3):
                with pytest.raises(ConnectionError, match="the daemon closed the connection"):
                    await disk.flush()

    run(main())


def test_idle_disk_costs_no_processor_time_and_wakes_up(daemon):
    async def main() -> None:
        async with await fipsee.aopen("a", socket=daemon.socket) as disk:
            await disk.read(0, 512)
            before = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - before < 0.25
            assert len(await disk.read(0, 512)) == 512

    run(main())


def test_nothing_leaks_from_loops_and_disks(daemon):
    async def main() -> None:
        async with await fipsee.aopen("a", socket=daemon.socket) as disk:
            buffer = disk.array(4096, np.uint8)
            await asyncio.gather(*(disk.readinto(0, buffer) for _ in range(100)))

    run(main())
    gc.collect()
    before = mappings(), descriptors()
    for _ in range(30):
        run(main())
    gc.collect()
    assert (mappings(), descriptors()) == before


def test_exception_in_the_block_closes_the_disk(daemon):
    async def main() -> None:
        with pytest.raises(KeyError):
            async with await fipsee.aopen("a", socket=daemon.socket, exclusive=True) as disk:
                await disk.read(0, 512)
                raise KeyError
        assert disk.closed
        with fipsee.open("a", socket=daemon.socket, exclusive=True):
            pass

    run(main())
