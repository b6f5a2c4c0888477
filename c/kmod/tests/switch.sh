# The daemon requests the disk back on virtqueues, repeatedly, under load: nothing is lost, and the driver attaches again each time.
. /vm/lib.sh
name=$(disk 0)
stats=/sys/kernel/debug/fip_blk/$name/stats
attachments() { awk '$1 == "attachments" { print $2 }' "$stats"; }
is_attached_anew() { [ "$(attachments)" -gt "$before" ]; }

fip-guest sizes "/dev/$name" 65536 "$(setting seed)"
for round in 1 2 3; do
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=64 --rw=randwrite --bsrange=512-256k \
        --size=128m --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$round" --thread --output-format=terse \
        >/tmp/fio 2>&1 &
    load=$!
    while [ -e "/proc/$load" ]; do
        before=$(attachments)
        report "event detach"
        wait_for "the next attachment" is_attached_anew
    done
    wait $load || { cat /tmp/fio; fail "round $round: an error, or other data than was written"; }
done
cat "$stats"
