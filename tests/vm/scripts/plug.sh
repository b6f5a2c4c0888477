# The device is taken out of the running machine and put in again; nothing hangs, the data is there.
. /vm/lib.sh
has_no_disk() { ! has_disk 0; }
for round in $(seq 3); do
    name=$(disk 0)
    if [ "$round" -gt 1 ]; then
        dd if="/dev/$name" bs=64k count=16 iflag=direct 2>/dev/null | cmp - /tmp/data || fail "round $round: the data is gone"
    fi
    head -c 1048576 /dev/urandom >/tmp/data
    dd if=/tmp/data of="/dev/$name" bs=64k oflag=direct conv=notrunc 2>/dev/null || fail "round $round: no write"
    report "event unplug"
    wait_for "the disk to go" has_no_disk
    report "event plug"
done
disk 0
