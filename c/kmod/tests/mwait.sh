# The threads find completions while they wait with MWAIT or UMWAIT, and everything arrives.
. /vm/lib.sh
name=$(disk 0)
stats=/sys/kernel/debug/fip_blk/$name/stats
parameters=/sys/module/fip_blk/parameters
grep -q -w -e monitor -e waitpkg /proc/cpuinfo || fail "this CPU has no instruction to wait with"
[ "$(nproc)" -gt 1 ] || fail "one CPU does not wait for itself"
count() { awk -v word="$1" '$1 == "thread" { for (at = 3; at < NF; at += 2) if ($at == word) sum += $(at + 1) } END { print sum + 0 }' "$stats"; }

load() {
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite --bsrange=512-64k --size=24m \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$1" --thread --output-format=terse >/tmp/fio 2>&1 ||
        { cat /tmp/fio; fail "fio finds other data than it wrote, or an error"; }
}

# Only the threads look; they do not give up on an emulated machine, which is slow.
echo 0 >$parameters/spin_us
echo 1000000 >$parameters/thread_us
load 1
[ "$(count mwaits)" = 0 ] || fail "a thread waits so without being configured to"
echo 1 >$parameters/mwait
before=$(count reaped)
load 2
cat "$stats"
[ "$(count mwaits)" -gt 0 ] || fail "no thread waited with MWAIT"
[ "$(count reaped)" -gt "$before" ] || fail "the threads found no completion"
# One request at a time: each wait ends by the store that it waits for, or by the next tick.
fip-guest sizes "/dev/$name" 65536 "$(setting seed)"
echo 0 >$parameters/mwait
load 3
