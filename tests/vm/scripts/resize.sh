# The disk grows while it is in use: Linux must learn the size, and the new part must hold data.
. /vm/lib.sh
name=$(disk 0)
is_larger() { [ "$(cat "/sys/block/$name/size")" = "$(setting sectors)" ]; }
! is_larger || fail "$name has the new size before it grew"
make_filesystem "/dev/$name"
mount -t ext4 "/dev/$name" /mnt
fip-guest tree /mnt/tree 40 "$(setting seed)"
sums /mnt/tree >/tmp/sums
report "event resize"
wait_for "the new size" is_larger
/sbin/resize2fs "/dev/$name" || fail "the file system does not grow"
fip-guest tree /mnt/more 40 "$(setting seed)"
drop_caches
same /mnt/tree /tmp/sums
same /mnt/more /tmp/sums
umount /mnt
check_filesystem "/dev/$name"
fip-guest sizes "/dev/$name" 65536 "$(setting seed)"
