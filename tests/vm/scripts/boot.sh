# The disk is there; nothing else. How long a guest takes from its start to its end.
. /vm/lib.sh
disk 0
