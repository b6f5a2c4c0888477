# The back end stops answering with requests in flight: after fail_seconds they fail, the machine goes on. Then the back end
# carries them out: the data must not land in memory that another program has by then. The driver is bound again; the device works.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/fip_blk
name=$(disk 0)
echo 3 >/sys/module/fip_blk/parameters/fail_seconds
echo 1 >/sys/module/fip_blk/parameters/query_seconds
has_ended() { ! kill -0 $load 2>/dev/null; }
is_busy() { [ $(($(awk '{print $5}' "/sys/block/$name/stat") - before)) -gt 200 ]; }

# Nothing of what is read is zero.
fio --name=fill --filename="/dev/$name" --direct=1 --rw=write --bs=1m --size=64m --thread --output-format=terse >/tmp/fio 2>&1 ||
    { cat /tmp/fio; fail "the disk cannot be filled"; }
before=$(awk '{print $5}' "/sys/block/$name/stat")
fio --name=load --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randrw --bs=4k --size=64m --thread \
    --time_based --runtime=600 --output-format=terse >/tmp/fio 2>&1 &
load=$!
wait_for "requests" is_busy
report "event silence"
wait_for "the load to end" has_ended
if wait $load; then
    fail "the load ended well"
fi
grep -q "path broken" "/sys/kernel/debug/fip_blk/$name/stats" || fail "the disk is not marked broken"
[ "$(dmesg | grep -c 'every request fails from now on')" = 1 ] || fail "the kernel log does not say it once"
if dd if="/dev/$name" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; then
    fail "a request to the broken disk succeeds"
fi
dmesg | grep -q "memory of failed requests is set aside" || fail "the kernel log does not say what becomes of the memory"
# Nearly all memory that is free goes to another user now; what the load had is in it, unless the driver holds it.
mount -t tmpfs -o size=100% later /mnt
megabytes=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) - 64 }' /proc/meminfo)
dd if=/dev/zero of=/mnt/later bs=1M count="$megabytes" 2>/dev/null || fail "no memory for another user"
report "event speak"
echo virtio0 >"$driver/unbind"
cmp -s -n $((megabytes << 20)) /mnt/later /dev/zero || fail "data of a request before the silence landed in memory that another user had"
umount /mnt
echo virtio0 >"$driver/bind"
fip-guest sizes "/dev/$(disk 0)" 65536 "$(setting seed)"
