# The back end is faulty, once in each way (tests/vm/fault_proxy.py injects the faults). The load fails, the machine does not;
# then the driver is bound again, and the device, now with a correct back end, works.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/fip_blk
has_ended() { ! kill -0 $load 2>/dev/null; }
complaints() { dmesg | grep -c "every request fails from now on" || true; }

for kind in tag far-tag count none kind reserved status size twice; do
    name=$(disk 0)
    before=$(complaints)
    first=$(awk '{print $1 + $5}' "/sys/block/$name/stat")
    is_busy() { [ $(($(awk '{print $1 + $5}' "/sys/block/$name/stat") - first)) -gt 200 ]; }
    fio --name=load --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=8 --rw=randrw --bs=4k --size=64m --thread \
        --time_based --runtime=600 --output-format=terse >/tmp/fio 2>&1 &
    load=$!
    wait_for "requests" is_busy
    report "event fault $kind"
    wait_for "the load to end after the fault '$kind'" has_ended
    if wait $load; then
        fail "$kind: the load ended well"
    fi
    grep -q "path broken" "/sys/kernel/debug/fip_blk/$name/stats" || fail "$kind: the disk is not marked broken"
    [ "$(complaints)" = $((before + 1)) ] || fail "$kind: the kernel log does not say it once"
    if dd if="/dev/$name" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; then
        fail "$kind: a request to the broken disk succeeds"
    fi
    echo virtio0 >"$driver/unbind"
    echo virtio0 >"$driver/bind"
    fip-guest sizes "/dev/$(disk 0)" 262144 "$(setting seed)"
done
dmesg | grep "every request fails from now on"
for complaint in "is not in flight" "head of a completion message" "kind of an event" "new size of the disk" "a second event"; do
    dmesg | grep -q "$complaint" || fail "the kernel log does not say '$complaint'"
done
