# fip_bench does what it says; its numbers are not checked. With fip.mwait=1 the CPU has MONITOR and MWAIT.
. /vm/lib.sh
# The disk is not what this is about, but works.
fip-guest sizes "/dev/$(disk 0)" 262144 1
insmod /modules/fip_bench.ko rounds=200
parameters=/sys/module/fip_bench/parameters
results=/sys/kernel/debug/fip_bench/results

# refuse WAITS WORDS: measuring with these fails, and says so.
refuse() {
    echo "$1" >$parameters/waits
    if echo 1 2>/dev/null >$parameters/run; then
        fail "fip_bench measured with waits '$1'"
    fi
    grep -q "$2" $results || fail "fip_bench does not say why: $(cat $results)"
}

# measure WAITS: all tables are there and nothing else, every answer was looked at, the numbers are in order.
measure() {
    echo "$1" >$parameters/waits
    echo 1 >$parameters/run || fail "fip_bench fails: $(cat $results)"
    cat $results
    waits=$(echo "$1" | tr , ' ')
    [ "$(grep -c ': cycles$' $results)" = "$(echo $waits | wc -w)" ] || fail "there are tables for other waits than $1"
    for wait in $waits; do
        grep -q "^$wait: cycles" $results || fail "there is no table for $wait"
    done
    # 7 batch sizes of 1 to 64 calls, 200 rounds and 20 to warm up.
    answers=$((127 * 220 * $(echo $waits | wc -w)))
    grep -q "^$answers answers, each what was asked" $results || fail "not $answers answers were checked"
    # min <= p50 <= p99, none of them nothing; the mean of a call is not above that of its batch.
    awk '/^ *[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+/ && NF == 6 {
        lines++
        if ($2 < 1 || $2 > $4 || $4 > $5 || $3 < $2 || $6 > $3) { print "not in order: " $0; bad = 1 }
    } END { exit bad || lines != '"$((7 * $(echo $waits | wc -w)))"' }' $results || fail "the numbers make no sense"
}

if [ "$(nproc)" = 1 ]; then
    refuse "" "need a CPU each"
else
    [ "$(setting mwait)" != 1 ] || grep -q monitor /proc/cpuinfo || fail "this CPU was to have MONITOR"
    refuse "spin,nap" "none of spin, pause, mwait: nap"
    measure spin,pause
    if grep -q -w -e monitor -e waitpkg /proc/cpuinfo; then
        measure mwait
        measure spin,pause,mwait
    else
        refuse mwait "neither WAITPKG nor MONITOR"
        refuse pause,mwait "neither WAITPKG nor MONITOR"
    fi
fi
rmmod fip_bench
