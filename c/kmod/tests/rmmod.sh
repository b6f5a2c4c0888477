# The driver is unbound and the module unloaded while requests are under way: they may fail, nothing hangs, and what was written before is
# there afterwards. Insmod finds the module where init found it.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/fip_blk
for round in $(seq 5); do
    name=$(disk 0)
    fip-guest sizes "/dev/$name" 262144 "$round"
    before=$(awk '{print $1 + $5}' "/sys/block/$name/stat")
    is_busy() { [ $(($(awk '{print $1 + $5}' "/sys/block/$name/stat") - before)) -gt 200 ]; }
    fio --name=load --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=64 --rw=randrw --bs=4k --size=32m \
        --time_based --runtime=600 --thread >/tmp/fio 2>&1 &
    load=$!
    wait_for "requests" is_busy
    echo virtio0 >"$driver/unbind"
    wait $load || true
    unload fip_blk
    [ ! -e /sys/kernel/debug/fip_blk ] || fail "round $round: something of the module is left"
    insmod /modules/fip_blk.ko
done
