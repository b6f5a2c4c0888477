# Interrupts of many disks on many CPUs, half of the disks with our driver and half with the kernel's: a completion comes where its
# request is from, and goes along when that moves; CPUs and devices that go give their vectors back.
. /vm/lib.sh
disks=$(setting disks)
queues=$(setting queues)
trace=/sys/kernel/tracing
parameters=/sys/module/fip_blk/parameters
insmod /modules/virtio_blk.ko
mount -t tracefs trace $trace 2>/dev/null || [ -e $trace/trace ]

# Of requests and of changes of the configuration.
vectors() { grep -c ' virtio[0-9]*-\(req\|config\)' /proc/interrupts || true; }
descriptors() { ls /proc/irq | grep -c '^[0-9]'; }
count() { grep -c "$1" /tmp/trace || true; }

# trace_on EVENT...: from now on only these.
trace_on() {
    echo 0 >$trace/events/enable
    echo >$trace/trace
    for event in "$@"; do
        echo 1 >"$trace/events/$event/enable"
    done
}
trace_off() {
    echo 0 >$trace/events/enable
    cat $trace/trace >/tmp/trace
}

# follow N [CPU]: fip_blk looks once for itself, so that not every completion needs an interrupt.
reads=16
follow() {
    disk=$1
    shift
    least=100
    [ $((disk % 2)) = 1 ] || least=0
    fip-guest follow "/dev/$(disk "$disk")" "virtio$disk" $reads $least "$@" 2>/tmp/follow || fail "$(cat /tmp/follow)"
}

# check_trace N WAKES PERCENT: completions of disk N were on the CPU of their request, all but PERCENT, for which a thread of fip_blk got
# ahead; the reader was woken from the CPU it is on, at least WAKES times, except where it was moved while it waited.
check_trace() {
    name=$(disk "$1")
    awk -v device="$(tr : , <"/sys/block/$name/dev")" -v moves="$queues" -v wakes="$2" -v percent="$3" '
        {
            for (at = 2; at < NF && $at !~ /^[a-z_]*:$/; at++)
                if ($at ~ /^\[[0-9]+\]$/) cpu = substr($at, 2, length($at) - 2) + 0
        }
        $at == "block_rq_issue:" && $(at + 1) == device { from[$(at + 5)] = cpu + 1 }
        $at == "block_rq_complete:" && $(at + 1) == device && from[$(at + 4)] {
            if (from[$(at + 4)] - 1 == cpu) same++; else other++
        }
        $at == "sched_waking:" && /comm=reader / { if (substr($NF, 12) + 0 == cpu) near++; else far++ }
        END {
            printf "%d completions on the CPU of their request, %d on another; woken %d times from the same CPU, %d from another\n", same, other, near, far
            exit !(same >= wakes && other * 100 <= same * percent && near >= wakes && far <= moves + other)
        }' /tmp/trace >/tmp/verdict || { head -n 40 /tmp/trace; fail "disk $1, $name: $(cat /tmp/verdict)"; }
    echo "disk $1, $name: $(cat /tmp/verdict)"
}

for number in $(seq 0 $((disks - 1))); do
    name=$(disk "$number")
    case $((number % 2))$name in 0fip* | 1vd*) ;; *) dmesg | grep -e fip_blk -e "virtio$number"; fail "disk $number is $name" ;; esac
done
[ "$(vectors)" = $((disks * (queues + 1))) ] || fail "$(vectors) vectors, not one for each queue and disk"

# fip_blk with interrupts only, once it has measured how long requests of a ring take.
echo 0 >$parameters/spin_us
echo 0 >$parameters/thread_us
for number in $(seq 0 $((disks - 1))); do
    follow "$number"
done
trace_on block/block_rq_issue block/block_rq_complete sched/sched_waking
follow 0
trace_off
check_trace 0 "$queues" 5
trace_on block/block_rq_issue block/block_rq_complete sched/sched_waking
follow 1
trace_off
check_trace 1 $((reads * queues)) 0

# A CPU goes offline under a reader: each disk gives back its vector there. The kernel traces nothing on a CPU that goes; but when it is
# back, what had been given back is activated anew, and nothing else.
cpu=$((queues - 3))
for number in 0 1; do
    trace_on irq_vectors/vector_activate
    follow "$number" $cpu
    trace_off
    [ "$(count "vector_activate:.*is_managed=1")" = "$disks" ] || { cat /tmp/trace; fail "not each disk has given back a vector and has it again"; }
done

# Devices are taken out: all of their vectors are free, and the daemon's descriptors are closed (the host looks).
has_gone() { ! [ -e "/sys/bus/virtio/devices/virtio$1" ]; }
# are_left VECTORS DESCRIPTORS: exactly so many? They go a moment after the device.
are_left() { [ "$(vectors) $(descriptors)" = "$1 $2" ]; }
all=$(vectors)
for number in $((disks - 2)) $((disks - 1)); do
    before=$(descriptors)
    trace_on irq_vectors/vector_teardown
    report "event unplug $number"
    wait_for "device $number to go" has_gone "$number"
    wait_for "the vectors of device $number to be free" are_left $((all - queues - 1)) $((before - queues - 1))
    trace_off
    [ "$(count vector_teardown:)" -ge $((queues + 1)) ] || { cat /tmp/trace; fail "device $number keeps vectors"; }
    report "event plug $number"
    follow "$number"
    wait_for "device $number to have as many again" are_left "$all" "$before"
done
