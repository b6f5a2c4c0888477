"""Memory shared with the daemon, and arrays in it: no copies, and mapped until its last view is gone."""

import gc
import subprocess
import sys
import textwrap

import fipsee
import numpy as np
import pytest
from conftest import descriptors, mappings


@pytest.fixture
def disk(daemon):
    with fipsee.open("a", socket=daemon.socket) as opened:
        yield opened


def test_memory_is_a_buffer_of_just_the_bytes_asked_for(disk):
    memory = disk.alloc(5000)
    assert (len(memory), memory.nbytes, memory.closed) == (5000, 5000, False)
    view = memoryview(memory)
    assert (view.nbytes, view.format, view.readonly, view.contiguous) == (5000, "B", False, True)
    assert view == bytes(5000), "new memory is zeroes"
    view[4999] = 1
    assert bytes(memory)[4998:] == b"\0\1"
    assert repr(memory) == "<fipsee.Memory of 5000 bytes>"


def test_array_is_the_memory_itself(disk):
    before = mappings()
    array = disk.array((4, 1024), np.uint32)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == ((4, 1024), np.uint32, True, True)
    array[:] = np.arange(4096).reshape(4, 1024)
    disk.write(0, array)
    other = disk.array(4096, "u4")
    assert disk.readinto(0, other) == 16384
    assert (other.reshape(4, 1024) == array).all()
    disk.readinto(0, array[2:3])
    assert (array[2] == np.arange(1024)).all(), "a part of it, from a sector on"
    assert mappings() == before + 2, "nothing went through other memory"
    # Less aligned than a request can name: copied, and still correct.
    disk.readinto(0, other[1:129])
    assert (other[1:129] == np.arange(128)).all() and other[129] == 129
    assert mappings() == before + 3


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int8, "datetime64[s]", [("key", "u4"), ("value", "f4")], bool])
def test_arrays_of_every_kind_of_bytes_are_written_and_read(disk, dtype):
    made = disk.array((64, 64), dtype)
    bits = np.random.default_rng(3).integers(0, 2, made.nbytes, np.uint8)
    made.reshape(-1).view(np.uint8)[:] = bits
    shared = made.view(np.uint8)
    disk.write(8192, shared)
    assert disk.read(8192, made.nbytes) == bits.tobytes()
    if np.dtype(dtype).kind != "M":  # numpy gives no buffer of dates.
        plain = np.empty((64, 64), dtype)
        disk.readinto(8192, plain)
        assert plain.tobytes() == bits.tobytes()
        disk.write(8192, plain)


def test_plain_arrays_and_fortran_and_gaps(disk):
    plain = np.random.default_rng(1).integers(0, 256, (512, 64), np.uint8)
    disk.write(0, plain)
    assert disk.read(0, plain.nbytes) == plain.tobytes()
    for gaps in (plain[::2], plain[:, :32], np.asfortranarray(plain)):
        with pytest.raises(BufferError, match="not contiguous"):
            disk.write(0, gaps)
        with pytest.raises(BufferError, match="not contiguous"):
            disk.readinto(0, gaps)
    frozen = plain.copy()
    frozen.flags.writeable = False
    disk.write(0, frozen)
    with pytest.raises(TypeError, match="read-only"):
        disk.readinto(0, frozen)


def test_arrays_of_objects_are_refused(disk):
    with pytest.raises(TypeError, match="no Python objects"):
        disk.array(4, object)


def test_memory_is_not_released_while_a_view_exists(disk):
    before = mappings()
    memory = disk.alloc(4096)
    array = np.frombuffer(memory, np.uint8)
    part = array[100:200]
    del array
    with pytest.raises(BufferError, match="1 views of this memory exist"):
        memory.close()
    assert mappings() == before + 1
    del part
    memory.close()
    assert memory.closed and mappings() == before
    memory.close()
    for use in (memoryview, np.frombuffer, lambda memory: disk.readinto(0, memory)):
        with pytest.raises(ValueError, match="the memory is closed"):
            use(memory)


def test_memory_is_unmapped_with_its_last_view(disk):
    before = mappings()
    array = disk.array(4096, np.uint8)
    part = array[::2][5:]
    del array
    gc.collect()
    assert mappings() == before + 1
    part[:] = 3
    del part
    gc.collect()
    assert mappings() == before


def test_arrays_outlive_their_disk(daemon):
    before = mappings()
    disk = fipsee.open("a", socket=daemon.socket)
    first, second = disk.array(1 << 20, np.uint8), disk.alloc(4096)
    disk.write(0, b"z" * (1 << 20))
    disk.readinto(0, first)
    disk.close()
    assert (first == ord("z")).all()
    first[:] = 1
    with fipsee.open("a", socket=daemon.socket) as another:
        another.write(0, first)
        assert another.read(0, 4096) == b"\1" * 4096, "memory of another disk is any memory"
    disk = fipsee.open("a", socket=daemon.socket)
    third = disk.array(4096, np.uint8)
    del disk
    gc.collect()
    third[:] = 4
    assert bytes(memoryview(second)) == bytes(4096)
    del first, second, third
    gc.collect()
    assert mappings() == before


def test_interpreter_exits_cleanly_with_open_objects(daemon):
    program = f"""
        import fipsee, numpy, threading
        disk = fipsee.open("a", socket="{daemon.socket}")
        array = disk.array(4096, numpy.uint8)
        memory = disk.alloc(512)
        cycle = [array, disk, memory]
        cycle.append(cycle)
        disk.readinto(0, array)
        threading.Thread(target=lambda: [disk.read(0, 512) for _ in range(10**9)], daemon=True).start()
        print(array.sum() >= 0)
    """
    for _ in range(3):
        output = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
        assert (output.returncode, output.stdout) == (0, "True\n"), output.stderr


def test_more_memories_than_a_daemon_takes_are_refused_and_may_be_released(disk):
    taken = [disk.alloc(512) for _ in range(63)]
    with pytest.raises(fipsee.Error, match="63 memories|memory regions") as caught:
        disk.alloc(512)
    assert caught.value.errno != 0
    del taken[30]
    taken.append(disk.alloc(512))
    del taken
    disk.alloc(512)


def test_wrong_sizes_of_memory_are_refused(disk):
    with pytest.raises(ValueError, match="1 byte"):
        disk.alloc(0)
    with pytest.raises(OverflowError):
        disk.alloc(-1)
    with pytest.raises((ValueError, OverflowError)):
        disk.alloc(1 << 64)
    with pytest.raises((ValueError, fipsee.Error)):
        disk.alloc(1 << 62)
    disk.read(0, 512)


def test_nothing_leaks_references_descriptors_or_mappings(daemon):
    def use() -> None:
        with fipsee.open("a", socket=daemon.socket, queues=2) as disk:
            array = disk.array((8, 4096), np.uint8)
            disk.read_batch([0] * 8, array, 4096)
            disk.write(0, bytes(4096))
            memory = disk.alloc(4096)
            for call in (lambda: disk.read(1, 512), lambda: disk.read_batch([1], memory, 4096), lambda: disk.readinto(0, b"x")):
                with pytest.raises((fipsee.Error, TypeError)):
                    call()
        del disk

    use()
    gc.collect()
    buffer, offsets = bytearray(4096), np.zeros(1, np.uint64)
    before = (mappings(), descriptors(), sys.getrefcount(buffer), sys.getrefcount(offsets), sys.getrefcount(None) // 1000)
    objects = len(gc.get_objects())
    with fipsee.open("a", socket=daemon.socket) as disk:
        own = sys.getrefcount(disk)
        for _ in range(500):
            disk.readinto(0, buffer)
            disk.read_batch(offsets, buffer, 4096)
            with pytest.raises(fipsee.Error):
                disk.readinto(1, buffer)
        assert sys.getrefcount(disk) == own
    del disk
    for _ in range(50):
        use()
    gc.collect()
    after = (mappings(), descriptors(), sys.getrefcount(buffer), sys.getrefcount(offsets), sys.getrefcount(None) // 1000)
    assert after == before
    assert len(gc.get_objects()) - objects < 100
    buffer.append(1)  # There is no view of it.
