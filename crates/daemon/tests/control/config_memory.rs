//! Memory disks that are larger than the memory of the machine.

use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, refused};
use rustix::process::Signal;

/// In MiB.
fn memory_of_the_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("a Linux system");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

/// As messages have it, which round up.
fn in_words(mib: u64) -> String {
    let (unit, shift) = [("TiB", 20), ("GiB", 10)].into_iter().find(|(_, shift)| mib >> shift > 0).unwrap_or(("MiB", 0));
    let tenths = (mib * 10).div_ceil(1 << shift);
    if tenths.is_multiple_of(10) { format!("{} {unit}", tenths / 10) } else { format!("{}.{} {unit}", tenths / 10, tenths % 10) }
}

#[test]
fn memory_disks_beyond_the_machine_are_refused_unless_they_say_overcommit() {
    let all = memory_of_the_machine();
    let disk = |name: &str, mib: u64, more: &str| format!("{name}=memory:{mib}M{more}");
    let too_large = refused(&["--disk", &disk("a", all + 1, "")]);
    assert_says(
        &too_large,
        &["disk 'a'", &format!("{} is more than the ", in_words(all + 1)), "of memory that", "add overcommit"],
    );
    let part = all * 3 / 5;
    let text = refused(&["--disk", &disk("a", part, ""), "--disk", &disk("b", part, "")]);
    assert_says(&text, &["disk 'b'", &format!("{0}, beside {0} of other memory disks, is more than", in_words(part))]);
    for more in [",overcommit", ",thp,overcommit"] {
        let daemon = Daemon::start(&["--disk", &disk("a", all + 1, more)]);
        daemon.blocking("a").write_at(&[1; 4096], all << 20).expect("written at its end");
    }
}

#[test]
fn memory_disk_beyond_the_machine_is_refused_at_a_reload() {
    let dir = Scratch::new();
    let all = memory_of_the_machine();
    let table = |name: &str, keys: &str| format!("[[disk]]\nname = \"{name}\"\nkind = \"memory\"\n{keys}\n");
    let small = table("a", &format!("size = \"1M\"\nmax = \"{}M\"", all * 2));
    dir.file("f.toml", &small);
    let mut daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let reload = |daemon: &Daemon, disk: &str, word: &str| {
        daemon.dir.file("f.toml", format!("{small}{disk}"));
        daemon.signal(Signal::HUP);
        eventually("the file is read again", || daemon.log().contains(word));
        daemon.log()
    };
    let large = format!("size = \"{}M\"", all + 1);
    let log = reload(&daemon, &table("b", &large), "not reloaded");
    assert_says(&log, &["disk 'b'", &format!("{}, beside 1 MiB of other memory disks, is more than", in_words(all + 1))]);
    reload(&daemon, &table("c", &format!("{large}\novercommit = true")), "reloaded added=[\"c\"]");
    // What a takeover finds in memory is not refused.
    daemon.take_over();
    daemon.blocking("a").write_at(&[1; 4096], 0).expect("written");
}
