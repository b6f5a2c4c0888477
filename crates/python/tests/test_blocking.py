"""Plain reads and writes."""

import pathlib
import random
import subprocess

import fipsee
import pytest
from conftest import FIPSEED, Daemon, mappings

MIB = 1 << 20


@pytest.fixture(params=["a", "b"])
def disk(daemon: Daemon, request):
    with fipsee.open(request.param, socket=daemon.socket) as opened:
        yield opened


def test_a_disk_describes_itself(daemon):
    with fipsee.open("a", socket=str(daemon.socket), queues=2, depth=32) as disk:
        assert (disk.name, disk.size, disk.block_size, disk.read_only) == ("a", 64 * MIB, 512, False)
        assert (disk.queues, disk.depth, disk.closed) == (2, 32, False)
        assert set(disk.capabilities) == {"write", "flush", "fua", "discard", "write_zeroes"}
        assert disk.optimal_size >= 512
        assert repr(disk) == f"<fipsee.Disk 'a' of {64 * MIB} bytes>"
    assert disk.closed
    assert "closed" in repr(disk)


def test_socket_is_found_in_the_environment(daemon, monkeypatch):
    monkeypatch.setenv("FIPSEE_SOCKET", str(daemon.socket))
    with fipsee.open("n") as disk:
        assert disk.size == 1 << 30


# One block, one piece, and lengths around the pieces and the number of them in flight.
@pytest.mark.parametrize("length", [512, 4096, 256 << 10, (256 << 10) + 512, 2 * MIB, 5 * MIB + 1536])
def test_what_is_written_is_read(disk, length):
    data, offset = random.Random(length).randbytes(length), 3 * 512
    disk.write(0, bytes(16 * MIB))
    assert disk.write(offset, data) == length
    assert disk.read(offset, length) == data
    assert disk.read(0, offset) == bytes(offset)
    assert disk.read(offset + length, 4096) == bytes(4096)
    into = bytearray(length + 512)
    assert disk.readinto(offset, memoryview(into)[512:]) == length
    assert into == bytes(512) + data
    # The same through shared memory, whole and from an odd offset.
    before = mappings()
    with disk.alloc(length + 512) as memory:
        view = memoryview(memory)
        view[512:] = data[::-1]
        disk.write(offset, view[512:])
        assert disk.read(offset, length) == data[::-1]
        disk.readinto(offset, view[:length])
        assert view[:length] == data[::-1]
        assert mappings() == before + 1
        view.release()
    assert mappings() == before


def test_random_operations_agree_with_a_bytearray(disk):
    draw = random.Random(5)
    size = 4 * MIB
    disk.write(0, bytes(size))
    model = bytearray(size)
    memory = disk.alloc(MIB)
    for _ in range(600):
        offset = draw.randrange(0, size, 512)
        length = min(draw.choice([512, 4096, 64 << 10, 700 << 10]), size - offset)
        match draw.randrange(6):
            case 0:
                disk.write(offset, model_bytes := draw.randbytes(length), fua=draw.random() < 0.3)
                model[offset : offset + length] = model_bytes
            case 1:
                view = memoryview(memory)[:length]
                view[:] = draw.randbytes(length)
                disk.write(offset, view)
                model[offset : offset + length] = view
            case 2:
                disk.write_zeroes(offset, length, unmap=draw.random() < 0.5)
                model[offset : offset + length] = bytes(length)
            case 3:
                assert disk.read(offset, length) == model[offset : offset + length]
            case 4:
                view = memoryview(memory)[:length]
                disk.readinto(offset, view)
                assert view == model[offset : offset + length]
            case _:
                disk.flush()
    assert disk.read(0, size) == model


def test_discarded_blocks_can_be_discarded_written_and_read(disk):
    disk.write(0, b"x" * MIB)
    disk.discard(4096, MIB - 8192)
    assert disk.read(0, 4096) == disk.read(MIB - 4096, 4096) == b"x" * 4096
    disk.write(4096, b"y" * 4096)
    assert disk.read(4096, 4096) == b"y" * 4096


def test_ranges_longer_than_one_request_takes_are_split(daemon):
    with fipsee.open("a", socket=daemon.socket) as disk:
        disk.write(0, b"x" * MIB)
        disk.write_zeroes(0, disk.size)
        assert disk.read(0, MIB) == bytes(MIB)
        disk.discard(0, disk.size)


def test_nothing_is_read_and_written_without_a_request(disk):
    assert disk.read(0, 0) == b""
    assert disk.readinto(0, bytearray()) == 0
    assert disk.write(0, b"") == 0


@pytest.mark.parametrize("wait", ["adaptive", "poll", "spin", "yield", "sleep"])
def test_every_way_of_waiting_reads(daemon, wait):
    with fipsee.open("b", socket=daemon.socket, wait=wait) as disk:
        disk.write(0, b"w" * 4096)
        for _ in range(200):
            assert disk.read(0, 4096) == b"w" * 4096


def test_data_is_in_the_file_after_a_flush(daemon):
    image = pathlib.Path(daemon.socket).with_name("b.img")
    with fipsee.open("b", socket=daemon.socket) as disk:
        disk.write(8192, b"f" * 4096)
        disk.flush()
        assert image.read_bytes()[8192:12288] == b"f" * 4096
        disk.write(8192, b"g" * 4096, fua=True)
        assert image.read_bytes()[8192:12288] == b"g" * 4096


def test_many_disks_are_opened_and_closed(daemon):
    for _ in range(100):
        with fipsee.open("a", socket=daemon.socket, exclusive=True) as disk:
            disk.read(0, 512)


def test_resize_cuts_no_call_short(own_daemon):
    resize = [FIPSEED.parent / "fipsee", "--connect", own_daemon.socket, "resize", "a", "--shrink", "--force"]
    # The acknowledgement of the event takes the only tag of the queue between two pieces of a call.
    with fipsee.open("a", socket=own_daemon.socket, depth=1) as disk:
        for mebibytes in (32, 48, 16):
            data = random.Random(mebibytes).randbytes(MIB)
            subprocess.run([*resize, f"{mebibytes}M"], check=True, stdout=subprocess.DEVNULL)
            disk.write(0, data)
            subprocess.run([*resize, f"{mebibytes - 1}M"], check=True, stdout=subprocess.DEVNULL)
            assert disk.read(0, MIB) == data
            assert disk.size == (mebibytes - 1) * MIB
