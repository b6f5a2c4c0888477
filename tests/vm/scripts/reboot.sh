# The machine starts again from its firmware, which drives the disk too, and finds what it wrote before.
. /vm/lib.sh
name=$(disk 0)
if mount -t ext4 "/dev/$name" /mnt; then
    same /mnt/tree /mnt/sums
    boots=$(cat /mnt/boots)
else
    make_filesystem "/dev/$name"
    mount -t ext4 "/dev/$name" /mnt
    fip-guest tree /mnt/tree 40 "$(setting seed)"
    sums /mnt/tree >/mnt/sums
    boots=0
fi
echo $((boots + 1)) >/mnt/boots
umount /mnt
check_filesystem "/dev/$name"
if [ "$boots" -lt 2 ]; then
    report "event reboot"
    reboot -f
    # Until the machine does.
    sleep 1000
fi
