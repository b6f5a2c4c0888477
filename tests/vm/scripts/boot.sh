# The disk is there and can be read; nothing else. How long a guest takes from its start to its end. (Not every kernel looks for
# partitions before it is asked for something.)
. /vm/lib.sh
dd if="/dev/$(disk 0)" of=/dev/null bs=4096 count=1 2>/tmp/dd || { cat /tmp/dd; fail "the disk cannot be read"; }
