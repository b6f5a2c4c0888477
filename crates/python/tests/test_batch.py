"""Many requests in one call."""

import array
import errno
import random

import fipsee
import numpy as np
import pytest
from conftest import descriptors, mappings, resident_bytes

BLOCK = 4096
COUNT = 1000


@pytest.fixture(params=["a", "b"])
def disk(daemon, request):
    with fipsee.open(request.param, socket=daemon.socket) as opened:
        yield opened


def shuffled_blocks(seed: int) -> list[int]:
    return random.Random(seed).sample(range(0, 4096 * BLOCK, BLOCK), COUNT)


KINDS = {
    "list": list,
    "tuple": tuple,
    "u64": lambda offsets: np.array(offsets, np.uint64),
    "i64": lambda offsets: np.array(offsets, np.int64),
    "i32": lambda offsets: np.array(offsets, np.int32),
    "every second": lambda offsets: np.repeat(np.array(offsets, np.int64), 2)[::2],
    "array": lambda offsets: array.array("Q", offsets),
    "memoryview": lambda offsets: memoryview(array.array("q", offsets)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_block_goes_to_its_place_from_whatever_offsets(disk, kind):
    plain = shuffled_blocks(1)
    offsets = KINDS[kind](plain)
    data = np.random.default_rng(2).integers(0, 256, (COUNT, BLOCK), np.uint8)
    memory = disk.array((COUNT, BLOCK), np.uint8)
    memory[:] = data
    before = mappings()
    disk.write_batch(offsets, memory, BLOCK)
    memory[:] = 0
    disk.read_batch(offsets, memory, BLOCK)
    assert mappings() == before, "no memory for copies was needed"
    assert (memory == data).all()
    for index in (0, 1, COUNT - 1):
        assert disk.read(plain[index], BLOCK) == data[index].tobytes()


@pytest.mark.parametrize("block", [512, 4096, 256 << 10, 768 << 10])
def test_batches_in_memory_of_python_are_copied(disk, block):
    count = 20
    offsets = random.Random(3).sample(range(0, count * block, block), count)
    data = random.Random(4).randbytes(count * block)
    disk.write_batch(offsets, data, block, fua=True)
    into = bytearray(count * block + 7)
    disk.read_batch(offsets, into, block)
    assert into == data + bytes(7)
    memory = disk.alloc(count * block)
    disk.read_batch(offsets, memory, block)
    assert memoryview(memory) == data
    for index in range(0, count, 7):
        assert disk.read(offsets[index], block) == data[index * block : (index + 1) * block]


def test_failure_names_every_request_that_failed_and_the_others_are_done(disk):
    disk.write(0, b"a" * BLOCK * 8)
    memory = disk.array((8, BLOCK), np.uint8)
    offsets = [0, disk.size, BLOCK, 1, 2 * BLOCK, 1 << 62, 3 * BLOCK, 4 * BLOCK]
    with pytest.raises(fipsee.BatchError) as caught:
        disk.read_batch(offsets, memory, BLOCK)
    assert caught.value.failures == [(1, errno.ENXIO), (3, errno.EINVAL), (5, errno.ENXIO)]
    assert caught.value.errno in (errno.ENXIO, errno.EINVAL)
    assert "3 of 8 requests failed" in str(caught.value)
    assert "number 1: the request reaches past the end" in str(caught.value)
    for index in range(8):
        assert memory[index].tobytes() == (bytes(BLOCK) if index in (1, 3, 5) else b"a" * BLOCK), index
    # Nothing of it is left behind.
    disk.read_batch([0], memory[:1], BLOCK)


def test_empty_batch_is_done(disk):
    disk.read_batch([], bytearray(), BLOCK)
    disk.write_batch(np.array([], np.uint64), b"", BLOCK)


def test_memory_that_is_too_small_is_refused_before_anything_is_read(disk):
    memory = disk.alloc(3 * BLOCK)
    with pytest.raises(ValueError, match="4 blocks of 4096 bytes do not fit into the memory of 12288 bytes"):
        disk.read_batch([0] * 4, memory, BLOCK)
    with pytest.raises(ValueError, match="do not fit"):
        disk.read_batch([0] * 4, memory, 0)
    with pytest.raises(ValueError, match="do not fit"):
        disk.read_batch([0] * 4, memory, (1 << 63) + 512)


def test_offsets_of_no_disk_are_refused(disk):
    memory = disk.alloc(BLOCK)
    with pytest.raises(ValueError, match="-4096 is negative"):
        disk.read_batch(np.array([-4096]), memory, BLOCK)
    with pytest.raises(OverflowError):
        disk.read_batch([-4096], memory, BLOCK)
    with pytest.raises(TypeError):
        disk.read_batch([0.5], memory, BLOCK)
    with pytest.raises(TypeError):
        disk.read_batch(7, memory, BLOCK)


def test_ten_million_requests_grow_neither_memory_nor_descriptors(daemon):
    with fipsee.open("n", socket=daemon.socket) as disk:
        offsets = np.arange(100_000, dtype=np.uint64) * 4096 % disk.size
        memory = disk.alloc(100_000 * 512)
        copied = bytearray(1000 * 512)

        def million() -> None:
            for _ in range(10):
                disk.read_batch(offsets, memory, 512)

        million()
        disk.read_batch(offsets[:1000], copied, 512)
        before = resident_bytes(), descriptors()
        for _ in range(9):
            million()
        for _ in range(100):
            disk.read_batch(offsets[:1000], copied, 512)
        after = resident_bytes(), descriptors()
    assert after[1] == before[1]
    # Four million bytes in ten million requests would be less than a byte for each.
    assert after[0] - before[0] < 4 << 20, (before, after)
