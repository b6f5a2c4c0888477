# Requests of every size, from contiguous and from scattered memory.
. /vm/lib.sh
fip-guest sizes "/dev/$(disk 0)" "$(setting step)" "$(setting seed)"
