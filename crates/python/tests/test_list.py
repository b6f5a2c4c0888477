"""The disks that this user may open."""

import fipsee
import pytest
from conftest import DISKS


def test_disks_are_listed_in_the_order_of_their_names(daemon):
    disks = fipsee.list_disks(socket=daemon.socket)
    assert [disk.name for disk in disks] == sorted(disk.split("=")[0] for disk in DISKS) == ["a", "b", "n", "r"]
    assert [disk.size for disk in disks] == [64 << 20, 64 << 20, 1 << 30, 1 << 20]
    assert [disk.read_only for disk in disks] == [False, False, False, True]
    assert {disk.block_size for disk in disks} == {512}
    assert disks == fipsee.list_disks(socket=str(daemon.socket))
    assert repr(disks[3]) == "<fipsee.ListedDisk 'r' of 1048576 bytes, read-only>"
    with fipsee.open(disks[0].name, socket=daemon.socket) as disk:
        assert (disk.size, disk.block_size) == (disks[0].size, disks[0].block_size)


def test_a_missing_daemon_is_reported(tmp_path):
    with pytest.raises(fipsee.NotFoundError, match="no such socket; start fipseed"):
        fipsee.list_disks(socket=tmp_path / "none")
    with pytest.raises(TypeError):
        fipsee.list_disks("positional")
