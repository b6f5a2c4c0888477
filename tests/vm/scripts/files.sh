# A file system, a tree copied into it, every byte compared after the caches were dropped, and again after a new mount.
. /vm/lib.sh
name=$(disk 0)
queues=$(ls "/sys/block/$name/mq" | wc -l)
[ "$queues" -ge "$(setting queues)" ] || fail "$name has $queues queues, not $(setting queues)"
if [ -n "$(setting interrupts)" ]; then
    interrupts=$(grep -c "virtio0-req" /proc/interrupts) || true
    [ "$interrupts" = "$(setting interrupts)" ] || fail "$interrupts interrupts for queues, not $(setting interrupts)"
fi

fip-guest tree /tmp/tree "$(setting files)" "$(setting seed)"
cp /bin/fip-guest /bin/busybox /tmp/tree/
sums /tmp/tree >/tmp/sums
make_filesystem "/dev/$name"
mount -t ext4 "/dev/$name" /mnt
cp -a /tmp/tree /mnt/first
drop_caches
cp -a /mnt/first /mnt/second
drop_caches
same /mnt/first /tmp/sums
same /mnt/second /tmp/sums
rm -r /mnt/first
umount /mnt
check_filesystem "/dev/$name"
mount -t ext4 "/dev/$name" /mnt
same /mnt/second /tmp/sums
[ "$(readlink /mnt/second/link)" = 0/file-0 ] || fail "the link leads elsewhere"
umount /mnt
