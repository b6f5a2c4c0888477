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
        refusal_of(attached, RefusalCode::UnknownName);
    }
    write("\"no-such-user\"");
    daemon.signal(Signal::HUP);
    eventually("the file is refused", || daemon.log().contains("not reloaded"));
    let pieces =
        ["disk 'a': allow_users: there is no user 'no-such-user' in /etc/passwd", "id -u no-such-user", "or restart the daemon"];
    assert_says(&daemon.log(), &pieces);
}

/// Tools write another file and rename it.
#[test]
fn user_made_later_is_found_by_a_daemon_that_is_not_root() {
    let tried = std::process::Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/run"]).output();
    if !is_root() || !tried.is_ok_and(|tried| tried.status.success()) {
        return skip("users of a system", "only root, where it may mount, can have a daemon see another /etc");
    }
    const OWN_ETC: &str = "cp /etc/passwd /etc/group /etc/nsswitch.conf {dir}/etc/; mount --bind {dir}/etc /etc; cp $1 {dir}/fipseed; shift; \
                           chown 4000 {dir}; exec setpriv --reuid 4000 --regid 4000 --clear-groups {dir}/fipseed \"$@\"";
    let dir = Scratch::new();
    std::fs::create_dir(dir.path("etc")).expect("a folder");
    std::fs::create_dir(dir.path("conf")).expect("a folder");
    let text = |user: &str| format!("[[disk]]\nname = \"a\"\nkind = \"memory\"\nsize = \"1M\"\nallow_users = [\"{user}\"]\n");
    dir.file("conf/f.toml", text("daemon"));
    let prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", OWN_ETC, "sh"];
    let daemon = Daemon::start_in(dir, &prefix, &["--config", "{dir}/conf/f.toml"]);
    assert!(!attaches(&daemon, (4711, 4711), "a"));
    let users = std::fs::read_to_string(daemon.dir.path("etc/passwd")).expect("users");
    daemon.dir.file("etc/passwd+", format!("{users}friend:x:4711:4711::/:/bin/sh\n"));
    std::fs::rename(daemon.dir.path("etc/passwd+"), daemon.dir.path("etc/passwd")).expect("replaced");
    daemon.dir.file("conf/f.toml", text("friend"));
    daemon.signal(Signal::HUP);
    eventually("the file is read again", || daemon.log().contains("changed=[\"disk 'a'\"]"));
    assert!(attaches(&daemon, (4711, 4711), "a") && !attaches(&daemon, (DAEMON.1, DAEMON.1), "a"));
}
