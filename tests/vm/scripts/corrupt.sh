# A test of the tests: the host spoils one file below the file system. Comparing finds it, names it, and does not hang.
. /vm/lib.sh
name=$(disk 0)
make_filesystem "/dev/$name"
mount -t ext4 "/dev/$name" /mnt
fip-guest tree /mnt/tree 20 "$(setting seed)"
# The host looks for these words on the disk.
yes "fipsee-vm: spoil this" | head -n 4000 >/mnt/tree/spoilt
sums /mnt/tree >/tmp/sums
drop_caches
differences /mnt/tree /tmp/sums >/tmp/named || fail "files differ before they were spoilt: $(cat /tmp/named)"
report "event corrupt"
is_spoilt() {
    drop_caches
    ! grep -q "$(md5sum </mnt/tree/spoilt | cut -d ' ' -f 1)" /tmp/sums
}
wait_for "the spoilt file" is_spoilt
if differences /mnt/tree /tmp/sums >/tmp/named; then
    fail "comparing does not find the spoilt file"
fi
[ "$(cat /tmp/named)" = "./spoilt" ] || fail "comparing names '$(cat /tmp/named)', not the spoilt file"
umount /mnt
check_filesystem "/dev/$name"
