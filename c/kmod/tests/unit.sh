# systemd has booted with fip-blk-takeover@vda enabled: the disk was moved before its file system was mounted by its label. A disk
# whose back end offers no rings is mounted all the same, as virtio_blk has it.
. /vm/lib.sh
unit=fip-blk-takeover@vda.service
driver_of() { basename "$(readlink -f "/sys/bus/virtio/devices/virtio0/driver")"; }
# when UNIT: microseconds from the start of the machine until it was active.
when() { systemctl show --value --property ActiveEnterTimestampMonotonic "$1"; }
check_files() {
    (cd /data/files && md5sum -c ../sums) >/tmp/checked || { cat /tmp/checked; fail "files differ from the host's"; }
}

if [ "$(setting peer)" = fipseed ]; then
    wanted="active fip_blk /dev/fip0"
else
    wanted="failed virtio_blk /dev/vda"
fi
found="$(systemctl is-active "$unit" || true) $(driver_of) $(findmnt --noheadings --output SOURCE /data)"
[ "$found" = "$wanted" ] || fail "unit, driver and what is mounted are '$found', not '$wanted'"
if [ "$(setting peer)" = fipseed ]; then
    [ "$(when "$unit")" -lt "$(when data.mount)" ] || fail "the disk was moved at $(when "$unit") and mounted at $(when data.mount)"
else
    journalctl --boot --unit "$unit" | grep -q "virtio_blk has it again" || fail "the unit does not say why it failed"
fi
# The name that virtio_blk's disks have, under either driver.
device=/dev/$(basename "${wanted##* }")
serial=$(cat "/sys/block/${device#/dev/}/serial")
for name in "by-label/files" "by-uuid/$(blkid -s UUID -o value "$device")" "by-id/virtio-$serial" "by-path/*"; do
    udevadm settle
    links=$(readlink -f /dev/disk/$name | sort -u)
    echo "$links" | grep -qx "$device" || fail "/dev/disk/$name is '$links', not $device"
done
check_files
dd if=/dev/urandom of=/data/new bs=1M count=8 conv=fsync 2>/dev/null
md5sum /data/new >/tmp/new
systemctl stop data.mount
systemctl start data.mount
md5sum -c /tmp/new
check_files
