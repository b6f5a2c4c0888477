# A new daemon takes over from the one that serves, again and again, while files are written and read: no process sees an error.
. /vm/lib.sh
name=$(disk 0)
requests() { awk '{print $1 + $5}' "/sys/block/$name/stat"; }
make_filesystem "/dev/$name"
mount -t ext4 "/dev/$name" /mnt
fip-guest tree /mnt/first "$(setting files)" "$(setting seed)"
sums /mnt/first >/tmp/sums
for round in $(seq "$(setting rounds)"); do
    before=$(requests)
    is_busy() { [ $(($(requests) - before)) -gt 20 ]; }
    (
        fip-guest tree /mnt/tree "$(setting files)" "$round" && sync &&
            fio --name=verify --filename=/mnt/verify --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite \
                --bsrange=4k-64k --size=24m --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$round" --thread \
                --output-format=terse
    ) >/tmp/load 2>&1 &
    load=$!
    wait_for "requests" is_busy
    report "event handover"
    wait $load || { cat /tmp/load; fail "round $round: an error, or other data than was written"; }
    report "event handover"
    sums /mnt/tree >/tmp/tree
    drop_caches
    same /mnt/first /tmp/sums
    same /mnt/tree /tmp/tree
    rm -r /mnt/tree
done
check_path
umount /mnt
check_filesystem "/dev/$name"
