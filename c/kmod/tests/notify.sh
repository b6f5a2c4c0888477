# Kicks are held back as a disk's attributes say, which change while requests are under way: every request completes, no kick exceeds
# the rate, and what is not possible is refused.
. /vm/lib.sh
name=$(disk 0)
attributes=/sys/block/$name
parameters=/sys/module/fip_blk/parameters
value() { cat "$attributes/$1"; }
set_to() { echo "$2" >"$attributes/$1" || fail "$1 cannot be set to $2"; }

# set_all RATE DELAY LEAST [AUTO]
set_all() {
    set_to notify_auto 0
    set_to notify_max_rate "$1"
    set_to notify_max_delay_us "$2"
    set_to notify_min_requests "$3"
    set_to notify_auto "${4:-0}"
}

# load DEPTH PAUSE_US SIZE: writes and reads, with pauses in which the daemon falls asleep.
load() {
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=io_uring --iodepth="$1" --rw=randwrite --bs=4k --size="$3" \
        --thinktime="$2" --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$1" --thread --output-format=terse >/tmp/fio 2>&1 ||
        { cat /tmp/fio; fail "fio finds other data than it wrote, or an error"; }
}

# What is out of range or no number changes nothing, and the log says what is in range.
for pair in notify_max_rate=10000000 notify_max_delay_us=1000000 notify_min_requests=4096 notify_auto=1; do
    setting=${pair%=*}
    most=${pair#*=}
    for place in "$attributes" $parameters; do
        [ "$(cat "$place/$setting")" = 0 ] || fail "$place/$setting is not 0 at first"
        for wrong in $((most + 1)) 4294967296 -1 many; do
            ! echo $wrong 2>/tmp/error >"$place/$setting" || fail "$place/$setting can be set to $wrong"
        done
        [ "$(cat "$place/$setting")" = 0 ] || fail "$place/$setting has changed"
        echo "$most" >"$place/$setting" || fail "$place/$setting cannot be set to $most"
        [ "$(cat "$place/$setting")" = "$most" ] || fail "$place/$setting is not $most"
        echo 0 >"$place/$setting"
    done
done
for place in "$attributes" $parameters; do
    for order in "notify_min_requests notify_auto" "notify_auto notify_min_requests"; do
        set -- $order
        echo 1 >"$place/$1"
        ! echo 1 2>/tmp/error >"$place/$2" || fail "$place has both $1 and $2"
        echo 0 >"$place/$1"
    done
done
dmesg | grep -q "notify_auto decides how many requests are waited for" || fail "the log does not say what contradicts what"
dmesg | grep -q "notify_max_rate=10000001 is not possible; use 1 to 10000000" || fail "the log does not say what is possible"

# Nothing is held back without a policy.
load 1 200 512k
[ "$(value kicks)" -gt 0 ] || fail "the daemon never slept, so that this tests nothing"
[ "$(value kicks_suppressed)" = 0 ] || fail "a kick was held back without a policy"

# By rate and occupancy a lone request is never held back.
set_to notify_auto 1
load 1 0 1m
[ "$(value kicks_suppressed)" = 0 ] || fail "a lone request was held back"
set_to notify_auto 0

# Requests complete while the policy changes under them, and with every policy.
load 4 100 8m &
load=$!
for round in $(seq 20); do
    for policy in "1000 0 0" "0 1000 0" "0 500 8" "2000 100 4" "0 0 4096" "10000000 1 1" "0 0 0 1" "50 20000 0" "5000 0 0 1" "0 0 0"; do
        set_all $policy
    done
done
wait $load || fail "requests fail while the policy changes"
for policy in "100 0 0" "0 300 0" "0 2000 16" "500 50 4096" "0 2000 0 1"; do
    set_all $policy
    load 1 0 256k
    load 16 300 256k
done

# is_held_back: runs a load, until some kick was held back. The times are in hundredths of a second, rounded against the driver.
is_held_back() {
    kicks=$(value kicks)
    suppressed=$(value kicks_suppressed)
    began=$(awk '{ printf "%d", $1 * 100 + 0.5 }' /proc/uptime)
    load 4 200 256k
    ended=$(($(awk '{ printf "%d", $1 * 100 + 0.5 }' /proc/uptime) + 1))
    kicks=$(($(value kicks) - kicks))
    echo "at most $rate/s: $kicks kicks in $((ended - began))0 ms"
    [ $((kicks * 100)) -le $((rate * (ended - began) + 100)) ] || fail "$kicks kicks in $((ended - began))0 ms at $rate/s"
    [ "$(value kicks_suppressed)" -gt "$suppressed" ]
}
# A delay that contradicts the rate gives way. Without the first rate there would be several times as many kicks.
for rate in 20 1000; do
    set_all $rate 1 1
    wait_for "a kick that is held back" is_held_back
done

# What the parameters say holds for a disk that is taken afterwards.
echo 700 >$parameters/notify_max_rate
echo virtio0 >/sys/bus/virtio/drivers/fip_blk/unbind
echo virtio0 >/sys/bus/virtio/drivers/fip_blk/bind || fail "the driver does not take the device again"
name=$(disk 0)
attributes=/sys/block/$name
[ "$(value notify_max_rate)" = 700 ] || fail "the module parameter does not hold for a new disk"
load 4 200 256k
grep -r . "$attributes"/notify_* "$attributes"/kicks* "$attributes"/interrupts*
[ "$(value interrupts_spurious)" -le "$(value interrupts)" ] || fail "more interrupts are spurious than came"
