# The back end lies or falls silent after some requests (the host arranges it). The load fails, the machine does not; then the driver is
# bound again, and the device, whose back end told its one lie, works.
. /vm/lib.sh
name=$(disk 0)
driver=/sys/bus/virtio/drivers/fip_blk
echo 3 >/sys/module/fip_blk/parameters/fail_seconds
echo 1 >/sys/module/fip_blk/parameters/query_seconds

if fio --name=load --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randrw --bs=4k --size=64m --thread \
    --output-format=terse >/tmp/fio 2>&1; then
    fail "the load ended well"
fi
grep -q "path broken" "/sys/kernel/debug/fip_blk/$name/stats" || fail "the disk is not marked broken"
[ "$(dmesg | grep -c 'every request fails from now on')" = 1 ] || fail "the kernel log does not say it once"
if dd if="/dev/$name" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; then
    fail "a request to the broken disk succeeds"
fi
echo virtio0 >"$driver/unbind"
[ -z "$(setting silent)" ] || exit 0
echo virtio0 >"$driver/bind"
fip-guest sizes "/dev/$(disk 0)" 65536 "$(setting seed)"
