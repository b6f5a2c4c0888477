# Loads on many disks in one boot, step by step, as the host's plan says (bench/suite/src/vm/plan.rs). The shell does little and starts
# no program while the plan runs: a system call costs user-mode Linux microseconds, a process milliseconds.
. /vm/lib.sh

load=/sys/kernel/debug/fip_load/run

# The guest's own null_blk: "host" and, with memory behind it, "hostmem"; a disk called "null" would want to be /dev/null.
mount -t configfs config /sys/kernel/config
insmod /modules/null_blk.ko nr_devices=0

# make_null NAME SETTING=VALUE...
make_null() {
    item=/sys/kernel/config/nullb/$1
    mkdir "$item"
    shift
    for pair in submit_queues=1 poll_queues=1 queue_mode=2 irqmode=0 hw_queue_depth=128 blocksize=512 "$@" power=1; do
        echo "${pair#*=}" >"$item/${pair%%=*}"
    done
    # Older kernels name the disk after its number.
    null_disk=${item##*/}
    [ -b "/dev/$null_disk" ] || null_disk=nullb$(cat "$item/index")
    [ -b "/dev/$null_disk" ] || fail "null_blk has made no disk"
}
make_null host size=1024
device_host=$null_disk
make_null hostmem size=64 memory_backed=1
device_hostmem=$null_disk

# Our driver takes its devices first, by name; the kernel's takes what is left.
insmod /modules/fip_load.ko
insmod /modules/fip_blk.ko devices="$(setting fip)" $(setting fip_arguments | tr , ' ')
insmod /modules/virtio_blk.ko
number=0
for label in $(setting disks | tr , ' '); do
    eval "device_$label=$(disk $number)"
    number=$((number + 1))
done
for label in host hostmem $(setting disks | tr , ' '); do
    eval "name=\$device_$label"
    # Nothing decides about order, whatever this kernel would choose.
    [ ! -e "/sys/block/$name/queue/scheduler" ] || echo none >"/sys/block/$name/queue/scheduler"
    case $label in
    *mem) dd if=/dev/zero of="/dev/$name" bs=1M count=64 oflag=direct conv=notrunc 2>/tmp/dd || { cat /tmp/dd; fail "$name cannot be filled"; } ;;
    esac
    echo "$label is $name"
done

# Interrupts so far, of all CPUs: of disks, from one CPU to another, of timers.
interrupts() {
    disks=0 between=0 timers=0
    while read -r row rest; do
        sum=0
        for word in $rest; do
            case $word in
            *[!0-9]*) break ;;
            esac
            sum=$((sum + word))
        done
        case "$row $rest" in
        RES:* | CAL:*) between=$((between + sum)) ;;
        LOC:*) timers=$((timers + sum)) ;;
        *virtio*) disks=$((disks + sum)) ;;
        esac
    done </proc/interrupts
}

# Where exits are counted, QEMU traces what the guest's CPUs do to devices; doorbells and halts, which it does not trace, are counted here.
exits=$(setting exits)
events=/sys/kernel/tracing/events
if [ "$exits" = 1 ]; then
    mount -t tracefs trace /sys/kernel/tracing 2>/dev/null || [ -e $events ]
    echo 'p:fip/doorbell vp_notify' >/sys/kernel/tracing/kprobe_events
    echo hist:keys=common_type >$events/fip/doorbell/trigger
    # The other events of this name are ends of halts.
    echo 'hist:keys=state if state != 4294967295' >$events/power/cpu_idle/trigger
fi

# hits EVENT: so many so far.
hits() {
    hits=0
    while read -r word count; do
        case $word in Hits:) hits=$count ;; esac
    done <"$events/$1/hist"
}

# mark LETTER: a line of the trace; nothing else writes such a letter to this port.
mark() {
    printf "$1" | dd of=/dev/port bs=1 seek=128 conv=notrunc 2>/tmp/dd || fail "the trace cannot be marked: $(cat /tmp/dd)"
}

# count LOAD...: run it, and put the line that says how it went behind what came of it.
count() {
    [ "$exits" = 0 ] || { hits fip/doorbell && doorbells=$hits && hits power/cpu_idle && halts=$hits && mark b; }
    echo "$*" >$load || fail "the load '$*' cannot be run"
    read -r line <$load
    [ "$exits" = 0 ] || {
        mark e
        hits power/cpu_idle
        halts=$((hits - halts))
        hits fip/doorbell
        line="doorbells=$((hits - doorbells)) halts=$halts $line"
    }
}

while read -r verb tag label rest; do
    case $verb in
    run)
        eval "name=\$device_$label"
        echo "device=/dev/$name $rest" >$load || fail "$label: the load '$rest' cannot be run"
        read -r line <$load
        report "run $tag $label $line"
        ;;
    # A load, and the notifications meanwhile. The host counts what is written to doorbells; it looks when it has the event.
    causes)
        eval "name=\$device_$label"
        report "event watch $tag"
        sleep 0.1
        interrupts
        before=$disks,$between,$timers
        count "device=/dev/$name $rest"
        interrupts
        sleep 0.1
        report "event unwatch $tag"
        report "causes $tag $label before=$before after=$disks,$between,$timers $line"
        ;;
    set)
        eval "name=\$device_$label"
        echo "$rest" >"/sys/block/$name/queue/$tag"
        ;;
    # The host gives what remains a CPU, and the back ends the other one.
    cpu)
        echo "$label" >"/sys/devices/system/cpu/cpu$tag/online"
        report "event cpu $tag $label"
        ;;
    parameter) echo "$label" >"/sys/module/fip_blk/parameters/$tag" ;;
    # The host looks at the processor time of all processes.
    watch | unwatch) report "event $verb $tag" ;;
    pause) sleep "$tag" ;;
    *) fail "the plan says '$verb'" ;;
    esac
done </vm/plan
[ ! -e /sys/kernel/debug/fip_blk ] || grep -r . /sys/kernel/debug/fip_blk
