# Deep queues of requests of mixed sizes, each read back and verified.
. /vm/lib.sh
name=$(disk 0)
for engine in io_uring psync; do
    fio --name=verify --filename="/dev/$name" --direct=1 --ioengine=$engine --iodepth=64 --rw=randwrite --bsrange=512-256k \
        --size=48m --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$(setting seed)" --thread --output-format=terse \
        >/tmp/fio 2>&1 || { cat /tmp/fio; fail "fio, engine $engine, finds other data than it wrote, or an error"; }
done
