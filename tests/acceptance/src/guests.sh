# For pages of the guide with guests. The other side is tests/vm/init-guide.
mkdir -p /run/netns
mount -t tmpfs netns /run/netns

# in_guest NAME: carry out, in that machine, what comes on standard input.
in_guest() {
    until_guest "$1" @@ready >/dev/null || return
    { cat; echo @@run; } 1<>"$1.in"
    until_guest "$1" @@ended
}

# until_guest NAME WORD: what the machine prints before a line that begins so; returns the number in it.
until_guest() {
    local line
    while IFS= read -r -t 120 line <>"$1.out"; do
        case $line in
        @@ready) [ "$2" = @@ready ] && return ;;
        "$2 "*) return "${line#* }" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done
    { echo "$1 does not answer; its console:"; cat "$1.log"; } >&2
    return 1
}

# machine NAME: its options apart from memory and network.
machine() {
    local clock="tsc=reliable clocksource=tsc no_timer_check"
    mkfifo "$1.in" "$1.out"
    declare -ga "$1=(-accel tcg -cpu max -nodefaults -display none -no-reboot -kernel '$guide_guest/vmlinuz' -initrd '$guide_guest/initrd'
        -append 'console=ttyS0 loglevel=5 panic=-1 mitigations=off $clock' -serial file:$1.log -serial pipe:$1
        -global virtio-net-pci.vectors=0)"
}

