# Discard and write-zeroes.
. /vm/lib.sh
name=$(disk 0)
for limit in discard_max_bytes write_zeroes_max_bytes; do
    [ "$(cat "/sys/block/$name/queue/$limit")" != 0 ] || fail "$name has $limit 0: the device does not offer it"
done
fip-guest zeroes "/dev/$name" "$(setting seed)"
