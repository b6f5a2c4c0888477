# The longest requests that the kernel makes when it may: none is longer than the disk takes, and none fails.
. /vm/lib.sh
name=$(disk 0)
queue=/sys/block/$name/queue
megabytes=48
cat "$queue/max_hw_sectors_kb" >"$queue/max_sectors_kb"
echo "$name: max_sectors_kb $(cat "$queue/max_sectors_kb"), segments $(cat "$queue/max_segments") of $(cat "$queue/max_segment_size")"

writes() { awk '{print $5}' "/sys/block/$name/stat"; }
head -c $((megabytes << 20)) /dev/urandom >/tmp/data
before=$(writes)
dd if=/tmp/data of="/dev/$name" bs=${megabytes}M count=1 oflag=direct conv=notrunc 2>/tmp/dd || { cat /tmp/dd; fail "a long write fails"; }
count=$(($(writes) - before))
echo "$megabytes MiB in $count writes"
# No disk takes more than 16 MiB (docs/protocol.md, 5.8).
[ $((count * 16)) -ge $megabytes ] || fail "$megabytes MiB went in $count writes: one was longer than 16 MiB"
[ "$count" -le "$(setting most)" ] || fail "$megabytes MiB went in $count writes, more than $(setting most): this tests nothing"
dd if="/dev/$name" of=/tmp/back bs=${megabytes}M count=1 iflag=direct 2>/tmp/dd || { cat /tmp/dd; fail "a long read fails"; }
cmp /tmp/data /tmp/back || fail "other data than was written"
