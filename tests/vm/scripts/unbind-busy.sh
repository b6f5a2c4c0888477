# The device is unbound while requests are in flight: they may fail, nothing may hang, and then all is well again.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/$(setting driver)
for round in $(seq "$(setting rounds)"); do
    name=$(disk 0)
    before=$(awk '{print $1 + $5}' "/sys/block/$name/stat")
    is_busy() { [ $(($(awk '{print $1 + $5}' "/sys/block/$name/stat") - before)) -gt 200 ]; }
    fio --name=load --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randrw --bs=4k --size=32m \
        --time_based --runtime=600 --thread >/tmp/fio 2>&1 &
    load=$!
    wait_for "requests" is_busy
    echo virtio0 >"$driver/unbind"
    wait $load || true
    echo virtio0 >"$driver/bind"
done
name=$(disk 0)
fip-guest sizes "/dev/$name" 65536 "$(setting seed)"
