# The back end is killed and comes back while requests are under way; no acknowledged write may be lost, none may fail.
. /vm/lib.sh
name=$(disk 0)
written() { awk '{print $5}' "/sys/block/$name/stat"; }
for round in $(seq "$(setting rounds)"); do
    before=$(written)
    is_busy() { [ $(($(written) - before)) -gt 20 ]; }
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --bsrange=4k-64k \
        --size=48m --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$round" --thread --output-format=terse \
        >/tmp/fio 2>&1 &
    load=$!
    wait_for "requests" is_busy
    report "event restart"
    wait $load || { cat /tmp/fio; fail "round $round: an error, or other data than was written"; }
done
fip-guest sizes "/dev/$name" 65536 "$(setting seed)"
