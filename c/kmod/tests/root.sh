# A Debian has booted from the disk: its initramfs has fip_blk, which comes before virtio_blk (the softdep of packaging/fip_blk.conf). A disk whose
# back end offers no rings is virtio_blk's.
. /vm/lib.sh
if [ "$(setting peer)" = fipseed ]; then
    wanted=/dev/fip0
else
    wanted=/dev/vda
fi
found=$(findmnt --noheadings --output SOURCE /)
[ "$found" = "$wanted" ] || fail "the root file system is on $found, not on $wanted"
dd if=/dev/urandom of=/var/tmp/new bs=1M count=8 conv=fsync 2>/dev/null
md5sum /var/tmp/new >/tmp/new
drop_caches
md5sum -c /tmp/new
# Every program and library on the disk, by dpkg's sums. Documentation was left out; settings ("c") are ours.
dpkg --verify | grep -v -e "^missing" -e " c /" >/tmp/verified || true
[ ! -s /tmp/verified ] || { cat /tmp/verified; fail "files of packages are not what they were"; }
