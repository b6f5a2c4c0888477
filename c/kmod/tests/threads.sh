# The number of threads follows what is set, and the load; rings move between threads and CPUs go under them meanwhile: everything
# arrives.
. /vm/lib.sh
name=$(disk 0)
attributes=/sys/block/$name
parameters=/sys/module/fip_blk/parameters
stats=/sys/kernel/debug/fip_blk/$name/stats
rings=$(setting queues)
# "short": little data, and what depends on load only once.
run=$(setting run)
value() { cat "$attributes/$1"; }
threads_of_disk() {
    for status in /proc/[0-9]*/status; do
        read -r key task 2>/dev/null <"$status" || continue
        case $task in fip[0-9]*/*) echo "${status%/status}" ;; esac
    done
}
set_to() { echo "$1" >"$attributes/threads" || fail "threads cannot be set to $1"; }
trace=/sys/kernel/tracing
mount -t tracefs trace $trace 2>/dev/null || [ -e $trace/trace ]

[ "$(value threads)" = "1..$((rings - 1))" ] || fail "by default there are $(value threads) threads"
[ "$(cat $parameters/threads)" = auto ] || fail "the parameter is $(cat $parameters/threads)"
for place in "$attributes/threads" $parameters/threads; do
    before=$(cat "$place")
    for wrong in 0 65 -1 many 0..2 3..2 1..65 1.. ..2 1..2..3 4294967297; do
        ! echo $wrong 2>/tmp/error >"$place" || fail "$place can be set to $wrong"
    done
    [ "$(cat "$place")" = "$before" ] || fail "$place has changed"
done
dmesg | grep -q "threads=65 is not possible; use a number from 1 to 64, a range such as 1..4, or auto" || fail "the log does not say what is possible"
set_to 64
[ "$(value threads) $(value threads_used)" = "$rings $rings" ] || fail "64 threads are not cut to the $rings rings"
# There is a CPU for each.
cpus_of_threads() { for thread in $(threads_of_disk); do sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$thread/status"; done; }
[ "$(cpus_of_threads | sort -u | grep -c '^[0-9]*$')" = "$rings" ] || fail "$rings threads on CPUs $(cpus_of_threads)"

# Only the threads look. Every ring has a job, on its CPU.
echo 0 >$parameters/spin_us
echo 1000000 >$parameters/thread_us
places="--cpus_allowed=0-$((rings - 1)) --cpus_allowed_policy=split"
load() {
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite --bs=4k --size="$1" \
        --numjobs="$rings" --offset_increment=16m $places --verify=crc32c \
        --verify_fatal=1 --do_verify=1 --thread --output-format=terse >/tmp/fio 2>&1
}

case $run in short) load 256k & ;; *) load 4m & ;; esac
load=$!
rounds=0
while [ -e /proc/$load ] && [ $rounds -lt 500 ]; do
    rounds=$((rounds + 1))
    for count in 1 3 2 "$rings" 1..2 "1..$rings" 2..3; do
        set_to "$count"
        used=$(value threads_used)
        [ "$used" -ge "${count%..*}" ] && [ "$used" -le "${count#*..}" ] || fail "$used threads, not $count"
    done
done
wait $load || { cat /tmp/fio; fail "other data than was written, or an error, while rings moved"; }
echo "$(value rings_moved) moves of rings in $rounds rounds, $(value threads_added) threads added, $(value threads_removed) removed"
[ "$(value rings_moved)" -gt $((rounds * rings)) ] || fail "rings hardly moved"

# Completions that a thread finds end where queue/rq_affinity says: with 2 on the CPU of the request, with 0 on the thread's, and with 1 on the
# thread's if the two share a cache. The reader is woken from there.
set_to 1
thread_cpu=$(sed -n 's/^thread 0 .* cpu \([0-9]*\) .*/\1/p' "$stats")
reader_cpu=$(((thread_cpu + 1) % rings))
redirected() { awk '{ for (at = 1; at < NF; at++) if ($at == "redirected") sum += $(at + 1) } END { print sum }' "$stats"; }
reads=64
# read_with AFFINITY SAME OTHER: so many completions, at least, on the CPU of the reader; and on another one. A reader that still runs is not woken.
read_with() {
    echo "$1" >"$attributes/queue/rq_affinity"
    before=$(redirected)
    echo >$trace/trace
    for event in block/block_rq_issue block/block_rq_complete sched/sched_waking; do echo 1 >"$trace/events/$event/enable"; done
    taskset -c "$reader_cpu" dd if="/dev/$name" of=/dev/null bs=4k count=$reads iflag=direct 2>/tmp/dd || { cat /tmp/dd; fail "the disk cannot be read"; }
    echo 0 >$trace/events/enable
    awk -v device="$(tr : , <"/sys/block/$name/dev")" -v reader="$reader_cpu" -v same_least="$2" -v other_least="$3" '
        {
            for (at = 2; at < NF && $at !~ /^[a-z_]*:$/; at++)
                if ($at ~ /^\[[0-9]+\]$/) cpu = substr($at, 2, length($at) - 2) + 0
        }
        $at == "block_rq_issue:" && $(at + 1) == device && cpu == reader { issued[$(at + 5)] = 1 }
        $at == "block_rq_complete:" && $(at + 1) == device && issued[$(at + 4)] { if (cpu == reader) same++; else other++ }
        $at == "sched_waking:" && /comm=dd / { if (cpu == reader) near++; else far++ }
        END {
            printf "%d completions on the CPU of the request, %d on another; woken %d times from it, %d from another", same, other, near, far
            exit !(same >= same_least && other >= other_least && (other_least || other + far <= 2))
        }' $trace/trace >/tmp/verdict || { head -n 40 $trace/trace; fail "rq_affinity $1: $(cat /tmp/verdict)"; }
    redirected=$(($(redirected) - before))
    echo "rq_affinity $1: $(cat /tmp/verdict); $redirected redirected, thread on CPU $thread_cpu"
}
# Some may come by an interrupt, thus on the CPU of the reader, until it is known that the disk is fast.
read_with 0 0 $((reads / 2))
[ $redirected = 0 ] || fail "$redirected completions are redirected where none is to be"
read_with 2 $reads 0
[ $redirected -ge $((reads / 2)) ] || fail "only $redirected completions of $reads are redirected"
caches=/sys/devices/system/cpu/cpu
if [ "$(cat $caches"$thread_cpu"/cache/index3/shared_cpu_list)" = "$(cat $caches"$reader_cpu"/cache/index3/shared_cpu_list)" ]; then
    read_with 1 0 $((reads / 2))
else
    read_with 1 $reads 0
fi

# The load alone decides. A thread is busy all the time, however slow the emulated CPUs of the jobs are, if what it ends takes long: with a trace of
# the stack at each function of the block layer that it calls. It has its CPU for itself. The other thread comes to a CPU with a job, which leaves it a little.
echo 0 >"$attributes/queue/rq_affinity"
set_to 1
set_to auto
others=$(seq 0 $((rings - 1)) | grep -vx "$thread_cpu" | tr '\n' ,)
reaped_by() { sed -n "s/^thread $1 reaped \([0-9]*\) .*/\1/p" "$stats"; }
small_load() {
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth=32 --iodepth_batch_submit=8 --rw=randwrite --bs=512 --size=256k \
        --numjobs=$((rings - 1)) --offset_increment=16m --cpus_allowed="${others%,}" --cpus_allowed_policy=split --verify=crc32c \
        --verify_fatal=1 --do_verify=1 --thread --output-format=terse >/tmp/fio 2>&1
}
added=$(value threads_added) before=$(reaped_by 1)
has_second() { [ "$(value threads_added)" -gt "$added" ] && [ "$(reaped_by 1)" -gt "$before" ]; }
echo 'blk_* bio_* __blk_* blkdev_*' >$trace/set_ftrace_filter
grep -lx "fip[0-9]*/0" /proc/[0-9]*/comm | sed 's:/proc/\([0-9]*\)/comm:\1:' >$trace/set_ftrace_pid
echo 1 >$trace/options/func_stack_trace
echo function >$trace/current_tracer || fail "functions cannot be traced"
( while [ ! -e /tmp/enough ]; do small_load || exit 1; done ) &
load=$!
wait_for "a second thread that serves under load" has_second
touch /tmp/enough
wait $load || { cat /tmp/fio; fail "other data than was written, or an error, while a thread was added"; }
echo nop >$trace/current_tracer
# It has all rings.
has_one() { [ "$(value threads_used)" = 1 ] && grep -q '^thread 1 .* rings 0x0 ' "$stats"; }
wait_for "one thread without load" has_one
small_load || { cat /tmp/fio; fail "other data than was written, or an error, after a thread was removed"; }
cat "$stats"

# They are redirected also while CPUs go.
echo 2 >"$attributes/queue/rq_affinity"

# A CPU with a thread and a ring goes and comes under load, to which no job is bound: fio refuses a CPU that is offline. A thread
# has one CPU again, whether their number is fixed or not.
are_bound() {
    load 64k || { cat /tmp/fio; fail "other data than was written, or an error, after CPUs went"; }
    for thread in $(threads_of_disk); do
        case $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$thread/status") in *[-,]*) return 1 ;; esac
    done
}
case $run in short) counts="2..$rings" size=256k ;; *) counts="$rings 2..$rings" size=2m ;; esac
for count in $counts; do
    places=
    set_to "$count"
    load $size &
    load=$!
    for cpu in $(seq 1 $((rings - 1))); do
        echo 0 >/sys/devices/system/cpu/cpu"$cpu"/online
        echo 1 >/sys/devices/system/cpu/cpu"$cpu"/online
    done
    wait $load || { cat /tmp/fio; fail "other data than was written, or an error, while CPUs went"; }
    wait_for "each of $count threads on one CPU" are_bound
done

[ "$run" != short ] || exit 0

# What the parameter says holds for a disk that is taken afterwards.
echo 2 >$parameters/threads
echo virtio0 >/sys/bus/virtio/drivers/fip_blk/unbind
echo virtio0 >/sys/bus/virtio/drivers/fip_blk/bind || fail "the driver does not take the device again"
name=$(disk 0)
[ "$(value threads) $(value threads_used)" = "2 2" ] || fail "the parameter does not hold for a new disk"
load 512k || { cat /tmp/fio; fail "other data than was written, or an error, on a new disk"; }

# No thread can be made for a moment: the disk stays with those it has, and gets the others later. What is between makes no process.
most=$(cat /proc/sys/kernel/threads-max)
echo 20 >/proc/sys/kernel/threads-max
echo "$rings" >"$attributes/threads"
read -r used <"$attributes/threads_used"
echo "$most" >/proc/sys/kernel/threads-max
[ "$used" = 2 ] || fail "$used threads where none can be made"
message="no further thread can be started (-11): 2 look after the rings"
dmesg | grep -q "$message" || fail "the log does not say that there is no thread"
load 64k || { cat /tmp/fio; fail "other data than was written, or an error, without a further thread"; }
is_all() { [ "$(value threads_used)" = "$rings" ]; }
wait_for "the other threads" is_all
