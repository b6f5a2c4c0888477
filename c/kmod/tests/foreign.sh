# The back end has no rings: fip_blk says so and leaves the device to virtio_blk; with keep=1 fip_blk drives it over virtio.
. /vm/lib.sh
module=/sys/module/fip_blk
[ ! -e /sys/bus/virtio/devices/virtio0/driver ] || fail "fip_blk took a device whose back end offers no rings"
dmesg | grep -q "leaving the device to virtio_blk" || fail "the kernel log does not say why"
insmod /modules/virtio_blk.ko
[ "$(disk 0)" = vda ] || fail "virtio_blk did not take it"
fip-guest sizes /dev/vda 65536 "$(setting seed)"
echo virtio0 >/sys/bus/virtio/drivers/virtio_blk/unbind
echo 1 >$module/parameters/keep
echo virtio0 >/sys/bus/virtio/drivers/fip_blk/bind
name=$(disk 0)
grep -q "path virtio" "/sys/kernel/debug/fip_blk/$name/stats" || fail "$name is not on virtio"
fip-guest sizes "/dev/$name" 16384 "$(setting seed)"
fip-guest zeroes "/dev/$name" "$(setting seed)"
fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=128 --rw=randwrite --bsrange=512-256k --size=48m \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --thread --output-format=terse >/tmp/fio 2>&1 ||
    { cat /tmp/fio; fail "an error, or other data than was written"; }
