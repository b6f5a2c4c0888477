# A read-only disk with a file system the host made.
. /vm/lib.sh
name=$(disk 0)
[ "$(cat "/sys/block/$name/ro")" = 1 ] || fail "$name can be written"
if dd if=/dev/zero of="/dev/$name" bs=4096 count=1 conv=notrunc 2>/tmp/dd && sync; then
    fail "writing to $name succeeds"
fi
mount -t ext4 -o ro,noload "/dev/$name" /mnt
(cd /mnt/files && md5sum -c ../sums) >/tmp/checked || { cat /tmp/checked; fail "files differ from the host's"; }
umount /mnt
