# The back end is killed again and again, and started anew, while threads write, flush and read: the host compares after each death what is on the
# disk with what was acknowledged. Nothing fails, nothing is lost, everything is answered once.
. /vm/lib.sh
name=$(disk 0)
fip-guest kills "/dev/$name" "$(setting kills)" 16 "$(setting seed)" 7 7>&7
report "event end"
stats=/sys/kernel/debug/fip_blk/$name/stats
[ -e "$stats" ] || exit 0
cat "$stats"
# The driver came back to rings, again and again. Two deaths may follow each other before it has.
[ "$(awk '$1 == "attachments" { print $2 }' "$stats")" -gt $(($(setting kills) / 2)) ] || fail "the driver does not attach after a death"
