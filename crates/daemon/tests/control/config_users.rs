//! Users and groups by name, at the start and at a reload of a confined daemon.

use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{Daemon, Scratch, as_user, as_user_of_group, assert_says, eventually, is_root, refusal_of, skip};
use rustix::process::Signal;

/// Every Debian has these, with these numbers.
const DAEMON: (&str, u32) = ("daemon", 1);
const BIN: (&str, u32) = ("bin", 2);
const DISK_GROUP: (&str, u32) = ("disk", 6);

fn attaches(daemon: &Daemon, (user, group): (u32, u32), name: &'static str) -> bool {
    let socket = daemon.socket();
    let attached =
        as_user_of_group((user, group), &[], move || fipsee_block::client::Disk::attach(&socket, &Daemon::options(name)));
    attached.is_ok()
}

#[test]
fn named_users_and_groups_may_attach_and_others_may_not() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let dir = Scratch::new();
    let table = |name: &str, allow: &str| format!("[[disk]]\nname = \"{name}\"\nkind = \"memory\"\nsize = \"1M\"\n{allow}\n");
    let lists =
        [("user", "allow_users = [\"daemon\", \"4000\", 4001]"), ("group", "allow_groups = [\"disk\"]\nallow_uids = [4002]")];
    dir.file("f.toml", lists.map(|(name, allow)| table(name, allow)).concat());
    let options =
        ["--config", "{dir}/f.toml", "--disk", "option=memory:1M", "--allow-user", BIN.0, "--allow-group", DISK_GROUP.0];
    let daemon = Daemon::start_in(dir, &[], &options);
    for (ids, allowed) in [
        ((DAEMON.1, 7000), &["user"][..]),
        ((4000, 7000), &["user"]),
        ((4001, 7000), &["user"]),
        ((4002, 7000), &["group"]),
        ((7001, DISK_GROUP.1), &["group", "option"]),
        ((BIN.1, 7000), &["option"]),
        // The number of the group is no user's.
        ((DISK_GROUP.1, 7000), &[]),
    ] {
        for name in ["user", "group", "option"] {
            assert_eq!(attaches(&daemon, ids, name), allowed.contains(&name), "{ids:?} and disk {name}");
        }
    }
}

#[test]
fn names_are_looked_up_again_at_a_reload_of_a_confined_daemon() {
    let dir = Scratch::new();
    let write = |users: &str| {
        let text = format!(
            "confine = \"required\"\n[[disk]]\nname = \"a\"\nkind = \"memory\"\nsize = \"1M\"\nallow_users = [{users}]\n"
        );
        std::fs::write(dir.path("conf/f.toml"), text).expect("a file");
    };
    std::fs::create_dir(dir.path("conf")).expect("a folder");
    write("\"daemon\"");
    let prefix = ["sh", "-c", "exec \"$@\"", "sh"];
    let daemon = match std::fs::read_to_string("/sys/kernel/security/lsm") {
        Ok(modules) if !modules.contains("landlock") => return skip("a confined daemon", "this kernel has no landlock"),
        _ => Daemon::start_in(Scratch::existing(&dir.0), &prefix, &["--config", "{dir}/conf/f.toml"]),
    };
    write("\"daemon\", \"bin\"");
    daemon.signal(Signal::HUP);
    eventually("the file is read again", || daemon.log().contains("changed=[\"disk 'a'\"]"));
    if is_root() {
        let socket = daemon.socket();
        as_user(BIN.1, &[], move || fipsee_block::client::Disk::attach(&socket, &Daemon::options("a"))).expect("attached");
        let socket = daemon.socket();
        let attached = as_user(4711, &[], move || fipsee_block::client::Disk::attach(&socket, &Daemon::options("a")));
        refusal_of(attached, RefusalCode::NotAllowed);
    }
    write("\"no-such-user\"");
    daemon.signal(Signal::HUP);
    eventually("the file is refused", || daemon.log().contains("not reloaded"));
    let pieces =
        ["disk 'a': allow_users: there is no user 'no-such-user' in /etc/passwd", "id -u no-such-user", "or restart the daemon"];
    assert_says(&daemon.log(), &pieces);
}
