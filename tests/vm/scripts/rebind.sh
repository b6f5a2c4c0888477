# The device is unbound from the driver and bound again, many times; what was written stays.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/$(setting driver)
head -c 1048576 /dev/urandom >/tmp/data
for round in $(seq 20); do
    name=$(disk 0)
    if [ "$round" -gt 1 ]; then
        dd if="/dev/$name" bs=64k count=16 iflag=direct 2>/dev/null | cmp - /tmp/data || fail "round $round: the data is gone"
    fi
    head -c 1048576 /dev/urandom >/tmp/data
    dd if=/tmp/data of="/dev/$name" bs=64k oflag=direct conv=notrunc 2>/dev/null || fail "round $round: no write"
    echo virtio0 >"$driver/unbind"
    [ ! -e "/sys/block/$name" ] || fail "round $round: $name is still there"
    echo virtio0 >"$driver/bind" || fail "round $round: the driver cannot be bound again"
done
