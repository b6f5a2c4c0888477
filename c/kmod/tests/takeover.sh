# A disk with a file system is virtio_blk's when the guest starts, as at any boot; fip-blk-takeover moves it to fip_blk, which dkms built,
# before it is mounted. A disk that is in use is refused; one whose back end offers no rings stays with virtio_blk.
. /vm/lib.sh
kernel=/lib/modules/$(uname -r)
mkdir -p "$kernel/updates"
# Where dkms installs them (DEST_MODULE_LOCATION).
mv /modules/fip_blk.ko "$kernel/updates/"
depmod
driver_of() { basename "$(readlink -f "/sys/bus/virtio/devices/virtio0/driver")"; }
check_files() {
    mount -t ext4 -o ro "/dev/$1" /mnt
    (cd /mnt/files && md5sum -c ../sums) >/tmp/checked || { cat /tmp/checked; fail "files on $1 differ from the host's"; }
}
# refused WORDS ARGUMENTS: the script fails and says why.
refused() {
    words=$1
    shift
    if fip-blk-takeover "$@" 2>/tmp/refusal; then
        fail "fip-blk-takeover $* succeeds"
    fi
    grep -q "$words" /tmp/refusal || fail "fip-blk-takeover $* does not say '$words': $(cat /tmp/refusal)"
}

[ "$(disk 0)" = vda ] && [ "$(driver_of)" = virtio_blk ] || fail "the disk is not virtio_blk's at the start"
refused "name the disks"
check_files vda
refused "vda is mounted" vda
umount /mnt
refused "is no disk and no virtio device" vdz
[ "$(driver_of)" = virtio_blk ] || fail "a refusal has moved the disk"

if [ "$(setting peer)" != fipseed ]; then
    refused "virtio_blk has it again" vda
    [ "$(disk 0)" = vda ] && [ "$(driver_of)" = virtio_blk ] || fail "the disk did not come back to virtio_blk"
    check_files vda
    umount /mnt
    exit 0
fi

fip-blk-takeover vda
[ "$(disk 0)" = fip0 ] && [ "$(driver_of)" = fip_blk ] || fail "the disk is not fip_blk's"
fip-blk-takeover virtio0 | grep -q "fip_blk has it" || fail "a second call does not see that there is nothing to do"
check_files fip0
mount -o remount,rw /mnt
fip-guest tree /mnt/tree 40 "$(setting seed)"
sums /mnt/tree >/tmp/sums
umount /mnt
check_filesystem /dev/fip0

# Back, and over again, by the name of the device.
echo virtio0 >/sys/bus/virtio/drivers/fip_blk/unbind
echo virtio0 >/sys/bus/virtio/drivers/virtio_blk/bind
[ "$(disk 0)" = vda ] || fail "virtio_blk does not take it back"
check_files vda
same /mnt/tree /tmp/sums
umount /mnt
fip-blk-takeover virtio0
name=$(disk 0)
check_files "$name"
same /mnt/tree /tmp/sums
umount /mnt
