# The back end, or this machine, is killed again and again while threads write, flush and read: the host compares after each kill what is on the
# disk with what was acknowledged. Nothing fails, nothing is lost, everything is answered once.
. /vm/lib.sh
name=$(disk 0)
stats=/sys/kernel/debug/fip_blk/$name/stats
# A killed machine cannot be asked afterwards which way its requests went.
for attempt in $(seq 100); do
    [ -e "$stats" ] && [ "$(setting peer)" = fipseed ] && ! grep -q "^path rings" "$stats" || break
    sleep 0.1
    [ "$attempt" -lt 100 ] || fail "the driver does not attach"
done
fip-guest kills "/dev/$name" "$(setting kills)" 16 "$(setting seed)" 7 "$(setting first)" 7>&7
report "event end"
[ -e "$stats" ] || exit 0
cat "$stats"
# The driver came back to rings, again and again. Two kills may follow each other before it has.
[ "$(awk '$1 == "attachments" { print $2 }' "$stats")" -gt $(($(setting kills) / 2)) ] || fail "the driver does not attach after a kill"
