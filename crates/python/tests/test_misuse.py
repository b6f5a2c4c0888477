"""Wrong use is refused with a message, and the disk keeps working."""

import errno
import os
import pathlib

import fipsee
import pytest


@pytest.fixture(params=["a", "b"])
def disk(daemon, request):
    with fipsee.open(request.param, socket=daemon.socket) as opened:
        yield opened
        opened.read(0, 512)


@pytest.mark.parametrize("offset, length", [(1, 512), (0, 1), (511, 513), (512, 100), (1, 1 << 20)])
def test_parts_of_blocks_are_refused(disk, offset, length):
    for call in (
        lambda: disk.read(offset, length),
        lambda: disk.readinto(offset, bytearray(length)),
        lambda: disk.write(offset, bytes(length)),
        lambda: disk.discard(offset, length),
        lambda: disk.write_zeroes(offset, length),
        lambda: disk.write(offset, memoryview(disk.alloc(length + 512))[:length]),
    ):
        with pytest.raises(fipsee.Error, match="multiples of the disk's logical block size") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
        assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("beyond", [0, 1 << 20, 1 << 50, (1 << 64) - (1 << 20)])
def test_blocks_past_the_end_are_refused(disk, beyond):
    offset = disk.size + beyond if beyond < 1 << 60 else beyond
    for length in (512, 4096, 1 << 20):
        with pytest.raises(fipsee.Error, match="past the end") as caught:
            disk.read(offset, length)
        assert caught.value.errno == errno.ENXIO
        with pytest.raises(fipsee.Error):
            disk.write(offset, bytes(length))
    with pytest.raises(fipsee.Error, match="past the end"):
        disk.read(disk.size - 512, 1024)


def test_numbers_and_things_of_the_wrong_kind_are_refused(disk):
    for call in (
        lambda: disk.read("0", 512),
        lambda: disk.read(0.0, 512),
        lambda: disk.read(None, 512),
        lambda: disk.write(0, "text"),
        lambda: disk.write(0, 7),
        lambda: disk.write(0, None),
        lambda: disk.readinto(0, bytes(512)),
        lambda: disk.readinto(0, [0] * 512),
        lambda: disk.read(),
        lambda: disk.write(0, b"", 1, 2),
        lambda: disk.array("x", "u1"),
        lambda: fipsee.open(),
        lambda: fipsee.open(7),
        lambda: fipsee.open("a", "positional"),
        lambda: fipsee.Memory(),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: disk.read(-512, 512), lambda: disk.read(0, -512), lambda: disk.read(1 << 64, 512)):
        with pytest.raises(OverflowError):
            call()
    with pytest.raises((MemoryError, OverflowError)):
        disk.read(0, (1 << 63) - 512)


def test_wrong_options_are_refused(daemon):
    for options, words in (
        ({"wait": "hard"}, "use adaptive, pause, spin, yield"),
        ({"queues": 0}, "at least one queue"),
        ({"depth": 0}, "depth 1"),
        ({"reconnect": -1}, "number of seconds"),
        ({"reconnect": float("nan")}, "number of seconds"),
        ({"reconnect": 1.0, "queues": 2}, "once per thread"),
    ):
        with pytest.raises(ValueError, match=words):
            fipsee.open("a", socket=daemon.socket, **options)


def test_missing_disks_and_daemons_are_reported(daemon, tmp_path):
    with pytest.raises(FileNotFoundError, match="no disk 'zebra' that user [0-9]+ may use; `fipsee ls` lists those") as caught:
        fipsee.open("zebra", socket=daemon.socket)
    assert isinstance(caught.value, fipsee.NotFoundError) and caught.value.errno == errno.ENOENT
    with pytest.raises(fipsee.NotFoundError, match="no such socket; start fipseed"):
        fipsee.open("a", socket=tmp_path / "none")
    with pytest.raises(fipsee.Error, match="1 to"):
        fipsee.open("", socket=daemon.socket)
    with pytest.raises(fipsee.Error, match="1 to"):
        fipsee.open("x" * 1000, socket=daemon.socket)
    plain = tmp_path / "file"
    plain.write_bytes(b"")
    with pytest.raises(ConnectionError, match="nothing listens"):
        fipsee.open("a", socket=plain)


def test_exclusive_use_keeps_others_out(daemon):
    with fipsee.open("a", socket=daemon.socket, exclusive=True):
        with pytest.raises(BlockingIOError) as caught:
            fipsee.open("a", socket=daemon.socket)
        assert isinstance(caught.value, fipsee.BusyError) and caught.value.errno == errno.EBUSY
    with fipsee.open("a", socket=daemon.socket):
        with pytest.raises(fipsee.BusyError):
            fipsee.open("a", socket=daemon.socket, exclusive=True)


def test_a_sole_writer_keeps_other_writers_out(daemon):
    with fipsee.open("a", socket=daemon.socket, claim="sole_writer"):
        for claim in ("none", "sole_writer"):
            with pytest.raises(fipsee.BusyError, match="is its sole writer"):
                fipsee.open("a", socket=daemon.socket, claim=claim)
        fipsee.open("a", socket=daemon.socket, read_only=True).close()
        fipsee.open("a", socket=daemon.socket, claim="ignore").close()
    with fipsee.open("a", socket=daemon.socket):
        with pytest.raises(fipsee.BusyError, match="may write it, too"):
            fipsee.open("a", socket=daemon.socket, claim="sole_writer")
    with pytest.raises(ValueError, match="'none', 'sole_writer' or 'ignore'"):
        fipsee.open("a", socket=daemon.socket, claim="all")


def test_writes_to_read_only_disks_are_refused(daemon):
    for name, options in (("r", {}), ("a", {"read_only": True})):
        with fipsee.open(name, socket=daemon.socket, **options) as disk:
            assert disk.read_only and "write" not in disk.capabilities
            for call in (lambda: disk.write(0, bytes(512)), lambda: disk.write_zeroes(0, 512), lambda: disk.discard(0, 512)):
                with pytest.raises(fipsee.Error, match="read-only") as caught:
                    call()
                assert caught.value.errno == errno.EROFS
            with pytest.raises(fipsee.BatchError, match="read-only"):
                disk.write_batch([0, 512], bytes(1024), 512)
            disk.read(0, 512)


def test_closed_disks_say_so(daemon):
    disk = fipsee.open("a", socket=daemon.socket)
    memory = disk.alloc(512)
    disk.close()
    disk.close()
    assert disk.closed
    for call in (
        lambda: disk.read(0, 512),
        lambda: disk.read(0, 0),
        lambda: disk.readinto(0, memory),
        lambda: disk.write(0, memory),
        lambda: disk.flush(),
        lambda: disk.discard(0, 512),
        lambda: disk.write_zeroes(0, 512),
        lambda: disk.read_batch([0], memory, 512),
        lambda: disk.write_batch([], memory, 512),
        lambda: disk.alloc(512),
        lambda: disk.array(512, "u1"),
        lambda: disk.size,
        lambda: disk._event_queue(),
    ):
        with pytest.raises(ValueError, match="the disk is closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        with disk:
            disk.read(0, 512)


def test_disk_of_the_parent_is_refused_in_a_forked_child_and_unharmed(daemon):
    with fipsee.open("a", socket=daemon.socket) as disk:
        memory = disk.alloc(4096)
        memoryview(memory)[:] = b"m" * 4096
        disk.write(0, memory)
        child = os.fork()
        if child == 0:
            outcome = 1
            try:
                for call in (lambda: disk.read(0, 512), lambda: disk.alloc(512), lambda: disk.size, lambda: disk._event_queue()):
                    with pytest.raises(ValueError, match="before fork"):
                        call()
                assert bytes(memory) == b"m" * 4096
                with fipsee.open("a", socket=daemon.socket) as own:
                    assert own.read(0, 4096) == bytes(memory)
                memory.close()
                disk.close()
                del disk, memory
                outcome = 0
            finally:
                os._exit(outcome)
        assert os.waitpid(child, 0)[1] == 0
        assert disk.readinto(0, memory) == 4096, "the parent's memory is still registered"
        assert disk.read(0, 4096) == b"m" * 4096
