# The rings follow the daemon's advice, or the parameter: with any choice, what was written is read.
. /vm/lib.sh
driver=/sys/bus/virtio/drivers/fip_blk
parameters=/sys/module/fip_blk/parameters

# again WORD: the device anew, with WORD for the parameter choices.
again() {
    echo "$1" >$parameters/choices
    echo virtio0 >$driver/unbind
    echo virtio0 >$driver/bind || fail "the driver does not take the device again"
    name=$(disk 0)
    stats=/sys/kernel/debug/fip_blk/$name/stats
    grep -q "^path rings" "$stats" || fail "no rings"
}

# has WORDS: does the statistics file have a line that begins so?
has() {
    grep -q "^$*" "$stats" || { cat "$stats"; fail "the statistics do not say '$*'"; }
}

# load DEPTH: as many at a time, some of them alone.
load() {
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth="$1" --rw=randwrite --bsrange=512-16k --size=4m \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$1" --thread --output-format=terse >/tmp/fio 2>&1 ||
        { cat /tmp/fio; fail "fio finds other data than it wrote, or an error"; }
}

again 0
grep "^choices" "$stats"
grep -q "^choices 0x[1-9a-f][0-9a-f]* advised" "$stats" || fail "the daemon advises nothing"
load 1
load 16
# Ownership and touch; then nothing that is known, and all bits.
for ownership in 1 2 3; do
    for touch in 1 2 3; do
        again 0x$touch$ownership
        has "choices 0x$touch$ownership pinned"
        has "queue 0 ownership $ownership touch_first $((touch == 3)) touch_rest $((touch > 1)) hold 0 asked 0"
        load 1
        load 16
    done
done
for word in 0x44 0xffffffff; do
    again $word
    has "queue 0 ownership 1 touch_first 0 touch_rest 0"
    load 1
done
# Measured, so that the search for the pace tries every method: one request at a time from within the kernel, thousands of them.
again 0
insmod /modules/fip_load.ko
echo "device=/dev/$name depth=1 ms=1000" >/sys/kernel/debug/fip_load/run
cat /sys/kernel/debug/fip_load/run "$stats"
load 1
rmmod fip_load
