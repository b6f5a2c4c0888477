# Two machines at ports of one network: each reaches the other, and gets from it by TCP what it sent, unchanged; then its link goes down and up,
# where the hypervisor forwards that.
. /vm/lib.sh
own=$(setting own)
other=$(setting other)

has_device() {
    [ -e /sys/class/net/eth0 ]
}

# Its input is silent and does not end: the other would take the end for that of the connection.
mkfifo /tmp/silence
exec 8<>/tmp/silence
fetch() {
    nc "$other" 5000 <&8 >/tmp/got 2>/tmp/nc && [ -s /tmp/got ]
}

# unanswered: how many echo requests had no answer yet.
unanswered() {
    awk '/^Icmp:/ && !n { n = split($0, name); next } /^Icmp:/ { for (i = 2; i <= n; i++) v[name[i]] = $i }
        END { print v["OutEchos"] - v["InEchoReps"] }' /proc/net/snmp
}

all_answered() {
    [ "$(unanswered)" -le "$before" ]
}

wait_for "the network's device" has_device
[ "$(cat /sys/class/net/eth0/address)" = "$(setting mac)" ] || fail "the address is $(cat /sys/class/net/eth0/address)"
[ "$(cat /sys/class/net/eth0/mtu)" = "$(setting mtu)" ] || fail "the MTU is $(cat /sys/class/net/eth0/mtu)"
ip link set lo up
ip addr add "$own/24" dev eth0
ip link set eth0 up
wait_for "the other machine" ping -c 1 -W 1 "$other"
before=$(unanswered)
for bytes in 0 56 1400 8000; do
    ping -c 20 -i 0.02 -W 5 -s "$bytes" "$other" >/tmp/ping || { cat /tmp/ping; fail "no answer to $bytes bytes"; }
done
# Counted by the kernel: ping does not wait for answers that are later than the first ones.
wait_for "all answers" all_answered
# The same in both machines, so that each knows what it gets.
seq 1 "$(setting lines)" >/tmp/sent
nc -l -p 5000 </tmp/sent >/tmp/nothing &
wait_for "what the other sends" fetch
cmp /tmp/sent /tmp/got || fail "what came by TCP is not what was sent"
wait
ping -c 1 -W 5 "$other" >/tmp/ping || true

# has_carrier 0|1
has_carrier() {
    [ "$(cat /sys/class/net/eth0/carrier)" = "$1" ]
}

# The host takes the port down, and up again.
if [ "$(setting link)" = 1 ]; then
    has_carrier 1 || fail "the link is down"
    report "event down"
    wait_for "the link to go down" has_carrier 0
    report "event up"
    wait_for "the link to come up" has_carrier 1
fi
for counter in rx_errors tx_errors rx_length_errors rx_frame_errors; do
    [ "$(cat /sys/class/net/eth0/statistics/$counter)" = 0 ] || fail "$counter is not 0"
done
