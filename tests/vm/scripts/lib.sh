# What the guest's scripts share.

# setting NAME: what fip.NAME= says on the kernel's command line.
setting() {
    for word in $(cat /proc/cmdline); do
        case $word in fip."$1"=*) echo "${word#*=}" ;; esac
    done
}

# report WORDS: a line for the host; it goes past the kernel's console, by what init opened.
report() {
    echo "fipsee-vm: $*" >&7
}

fail() {
    echo "failed: $*"
    report "error: $*"
    exit 1
}

# wait_for WHAT COMMAND...: until it succeeds. Looks are counted, not seconds: the host may stop the whole machine for a while.
wait_for() {
    what=$1
    shift
    echo "waiting for $what"
    for look in $(seq 4000); do
        "$@" && return
        sleep 0.02
    done
    fail "$what did not come"
}

has_disk() {
    [ -e "$(echo /sys/bus/virtio/devices/virtio"$1"/block/*)" ]
}

# disk N: the name of the disk of the Nth virtio device, whatever driver it has.
disk() {
    wait_for "the disk of virtio$1" has_disk "$1" >&2
    basename "$(echo /sys/bus/virtio/devices/virtio"$1"/block/*)"
}

drop_caches() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

# sums FOLDER: a line for each file in it.
sums() {
    (cd "$1" && find . -type f | sort | xargs md5sum)
}

# differences FOLDER SUMS: names of files in it that are not exactly those; none is success. A file that cannot be read is one.
differences() {
    sums "$1" >/tmp/found 2>/tmp/unread || cat /tmp/unread >&2
    cmp -s "$2" /tmp/found && return
    diff "$2" /tmp/found | sed -n 's/^[-+][0-9a-f]\{32\}  //p' | sort -u
    return 1
}

# same FOLDER SUMS: are the files in it exactly those?
same() {
    named=$(differences "$1" "$2") && return
    diff "$2" /tmp/found | head -20
    fail "files in $1 are not what they were: $(echo "$named" | head -n 5 | tr '\n' ' ')"
}

# check_filesystem DEVICE: nothing to repair?
check_filesystem() {
    /sbin/e2fsck -f -n "$1" >/tmp/e2fsck 2>&1 && return
    cat /tmp/e2fsck
    fail "e2fsck finds errors on $1"
}

# make_filesystem DEVICE
make_filesystem() {
    # By its path: the shell prefers the mke2fs it has built in.
    /sbin/mke2fs -q -F -t ext4 "$1" || fail "no file system on $1"
}

# check_path: our driver falls back to virtio without a word of complaint; a test of rings that did so has tested nothing.
check_path() {
    [ "$(setting driver)" = fip_blk ] && [ "$(setting peer)" = fipseed ] || return 0
    for stats in /sys/kernel/debug/fip_blk/*/stats; do
        grep -q "^path rings" "$stats" && grep -q "^queue [0-9]* requests [1-9]" "$stats" && return
    done
    cat /sys/kernel/debug/fip_blk/*/stats
    fail "fip_blk moved no request over rings"
}

# is_debug_kernel: is this the kernel with KASAN, lockdep and kmemleak?
is_debug_kernel() {
    [ -e /sys/kernel/debug/kmemleak ]
}

# unload MODULE, with its devices unbound. The debug kernel (CONFIG_DEBUG_KOBJECT_RELEASE) releases their disks after a delay of up to four
# seconds, which nothing shows from outside, and calls the module then.
unload() {
    ! is_debug_kernel || sleep 6
    rmmod "$1" || fail "the module $1 is in use"
}

# check_debug_kernel: has the debug kernel found something that it reports only on request, and do its checks still run? What a driver forgot is
# looked for when it has let go of its devices and is gone. Others have nothing to report.
check_debug_kernel() {
    is_debug_kernel || return 0
    grep -q "debug_locks: *1" /proc/lockdep_stats || fail "lockdep has switched itself off"
    for module in $(setting modules | tr , ' '); do
        unload "$module"
    done
    # kmemleak ignores memory younger than five seconds (MSECS_MIN_AGE). It reports what two scans find.
    sleep 6
    for scan in 1 2; do
        echo scan >/sys/kernel/debug/kmemleak || fail "kmemleak has switched itself off"
    done
    cat /sys/kernel/debug/kmemleak >/tmp/leaks
    [ -s /tmp/leaks ] || return 0
    cat /tmp/leaks
    fail "memory was forgotten: $(grep -c '^unreferenced object' /tmp/leaks) pieces"
}
