# Processes that do everything to files at once.
. /vm/lib.sh
name=$(disk 0)
make_filesystem "/dev/$name"
mount -t ext4 "/dev/$name" /mnt
fip-guest stress /mnt 6 "$(setting operations)" "$(setting seed)"
umount /mnt
check_filesystem "/dev/$name"
