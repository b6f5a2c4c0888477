# fip_bench does what it says; its numbers are for those who measure.
. /vm/lib.sh
insmod /modules/fip_bench.ko rounds=200
results=/sys/kernel/debug/fip_bench/results
if [ "$(nproc)" = 1 ]; then
    if echo 1 >/sys/module/fip_bench/parameters/run; then
        fail "fip_bench measured two CPUs where there is one"
    fi
    grep -q "need a CPU each" $results || fail "fip_bench does not say why: $(cat $results)"
else
    echo 1 >/sys/module/fip_bench/parameters/run
    grep -q "^   64 " $results || fail "fip_bench measured no batch of 64"
    cat $results
fi
rmmod fip_bench
