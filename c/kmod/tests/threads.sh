# The number of threads follows what is set, and the load; rings move between threads and CPUs go under them meanwhile: everything
# arrives.
. /vm/lib.sh
name=$(disk 0)
attributes=/sys/block/$name
parameters=/sys/module/fip_blk/parameters
stats=/sys/kernel/debug/fip_blk/$name/stats
rings=$(setting queues)
# "short": little data, and nothing that depends on load.
run=$(setting run)
value() { cat "$attributes/$1"; }
threads_of_disk() {
    for status in /proc/[0-9]*/status; do
        read -r key task 2>/dev/null <"$status" || continue
        case $task in fip[0-9]*/*) echo "${status%/status}" ;; esac
    done
}
set_to() { echo "$1" >"$attributes/threads" || fail "threads cannot be set to $1"; }

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

# How long it takes until a thread of an emulated CPU is busy all the time depends on what else the host runs.
[ "$run" != short ] || exit 0

# The load alone decides.
places="--cpus_allowed=0-$((rings - 1)) --cpus_allowed_policy=split"
set_to 1
set_to auto
before=$(value threads_added)
has_more() {
    load 512k || { cat /tmp/fio; fail "other data than was written, or an error"; }
    [ "$(value threads_added)" -gt "$before" ]
}
wait_for "another thread under load" has_more
is_one() { [ "$(value threads_used)" = 1 ]; }
wait_for "one thread without load" is_one
cat "$stats"

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
