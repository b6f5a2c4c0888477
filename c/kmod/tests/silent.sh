# The back end falls silent with requests under way: after fail_seconds they fail, the machine does not. Then it speaks again, the
# driver is bound again, and the device works.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/fip_blk
name=$(disk 0)
echo 3 >/sys/module/fip_blk/parameters/fail_seconds
echo 1 >/sys/module/fip_blk/parameters/query_seconds
has_ended() { ! kill -0 $load 2>/dev/null; }
is_busy() { [ "$(awk '{print $5}' "/sys/block/$name/stat")" -gt 200 ]; }

# Writes only: what the back end does late must not land in memory that somebody else has by then.
fio --name=load --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --bs=4k --size=64m --thread \
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
report "event speak"
echo virtio0 >"$driver/unbind"
echo virtio0 >"$driver/bind"
fip-guest sizes "/dev/$(disk 0)" 65536 "$(setting seed)"
