"""Uses that must pass mypy --strict; never run."""

import asyncio
import pathlib
import select
from collections.abc import Sequence

import fipsee
import numpy as np


def names() -> list[tuple[str, int, bool]]:
    return [(disk.name, disk.size // disk.block_size, disk.read_only) for disk in fipsee.list_disks(socket="s")]


def blocking(offsets: Sequence[int]) -> bytes:
    with fipsee.open("a", socket=pathlib.Path("s"), queues=2, wait="poll", reconnect=1.5) as disk:
        memory: fipsee.Memory = disk.alloc(4096)
        count: int = disk.readinto(0, memory) + disk.write(0, memoryview(memory)[512:], fua=True)
        array = disk.array((2, 3), np.float32)
        disk.read_batch(np.zeros(4, np.uint64), memory, 1024)
        disk.write_batch(offsets, array, np.uint64(512))
        disk.discard(0, count)
        cpu: int | None = disk.place_thread() or disk.place_thread(queue=1)
        print(cpu, disk.doorbell_counts.doorbells + disk.doorbell_counts.suppressed)
        try:
            return disk.read(0, disk.size)
        except fipsee.BatchError as error:
            index, number = error.failures[0]
            return bytes([index, number, error.errno or 0])


async def awaited() -> int:
    async with await fipsee.aopen("a", depth=8, wait="sleep") as disk:
        one, two = await asyncio.gather(disk.read(0, 512), disk.readinto(0, bytearray(512)))
        await disk.write(0, one + one)
        return two + disk.size + disk.doorbell_counts.wakeups


def frames() -> list[str]:
    with fipsee.Port("lan/a", socket="s", depth=16, buffer_size=2048, wait="sleep") as port:
        port.send(port.address + bytes(8))
        count: int = port.send_batch([bytes(60), bytearray(60)])
        found: bytes | None = port.receive(timeout=0.5)
        length: int | None = port.receive_into(bytearray(count), 1)
        print(found, length, port.receive_batch(most=2), port.counters["refused"], port.up, port.changes + port.mtu)
    return [listed.mac for listed in fipsee.list_ports() if not listed.in_use]


def offloaded() -> fipsee.Offload | None:
    with fipsee.Port("lan/a", offloads=fipsee.Offload.CHECKSUM | fipsee.Offload.TSO4, least_mtu=1500) as port:
        port.send(bytes(60), fipsee.Offload(flags=fipsee.Offload.NEEDS_CHECKSUM, checksum_start=34, checksum_offset=16))
        received = port.receive_offloaded(timeout=1)
        return None if received is None or port.offloads == 0 else received[1]


def without_copies() -> bytes:
    with fipsee.Port("lan/a") as port, port.buffer() as buffer:
        buffer.view[:6] = port.address
        port.send_buffer(buffer, len(buffer), fipsee.Offload())
        port.join("01:00:5e:00:00:fb")
        port.leave(b"\x01\x00\x5e\0\0\xfb")
        port.all_groups(False)
        readable, _, _ = select.select([port], [], [], 0 if port.arm() else 1)
        port.woken()
        frame: fipsee.Frame | None = port.take(timeout=len(readable))
        if frame is None:
            return b""
        with frame:
            return frame.tobytes() + bytes(frame.view[:14]) + b"".join(frame.pieces) + bytes(frame.offload.flags)


async def awaited_frames() -> bytes:
    async with await fipsee.aopen_port("lan/a", offloads=1) as port:
        await port.join("01:00:5e:00:00:fb")
        counts: fipsee.DoorbellCounts = port.doorbell_counts
        print(counts.wakeups - counts.spurious)
        (await port.take()).release()
        await port.send(port.address + bytes(8), fipsee.Offload())
        frame, offload = await port.receive_offloaded()
        return await port.receive() if offload.segmentation else frame
