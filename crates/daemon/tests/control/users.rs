//! Users: their groups, and the limits of all clients of one user.

use fipsee_block::client::{AttachOptions, Blocking, Disk, Error, Queue};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{
    CorrectClient, Daemon, Scratch, as_user, as_user_of_group, assert_says, eventually, is_root, refusal_of, skip,
};
use serde_json::json;

fn attach_as(daemon: &Daemon, id: u32, groups: &[u32]) -> Result<(Disk, Vec<Queue>), Error> {
    let socket = daemon.socket();
    as_user(id, groups, move || Disk::attach(&socket, &Daemon::options("a")))
}

fn start(settings: &str) -> Daemon {
    let dir = Scratch::new();
    let text = format!("{settings}\n[[disk]]\nname = \"a\"\nspec = \"memory:4M\"\nallow_everyone = true\n");
    std::fs::write(dir.path("f.toml"), text).expect("a file");
    Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"])
}

#[test]
fn supplementary_group_on_the_list_opens_a_disk_and_any_other_does_not() {
    if !is_root() {
        return skip("attach with other groups", "only root can give itself groups");
    }
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--allow-gid", "4002", "--allow-gid", "4003"]);
    let many: Vec<u32> = (5000..5200).collect();
    let many_and_one = [&many[..], &[4003]].concat();
    for groups in [&[4002][..], &[17, 4003], &many_and_one] {
        attach_as(&daemon, 4000, groups).unwrap_or_else(|error| panic!("{groups:?}: {error}"));
    }
    for groups in [&[][..], &[17, 18], &many] {
        refusal_of(attach_as(&daemon, 4000, groups), RefusalCode::UnknownName);
    }
    // A user with the number of a group on the list, which is in none of them.
    let socket = daemon.socket();
    let attached = as_user_of_group((4002, 4000), &[], move || Disk::attach(&socket, &Daemon::options("a")));
    refusal_of(attached, RefusalCode::UnknownName);
}

#[test]
fn hypervisor_is_known_by_its_supplementary_groups() {
    if !is_root() {
        return skip("connect with other groups", "only root can give itself groups");
    }
    let arguments = ["--disk", "a=memory:1M", "--allow-gid", "4002", "--vhost-user", "a={dir}/vm"];
    let daemon = Daemon::start(&arguments);
    let connect = |groups: &[u32]| {
        let path = daemon.dir.path("vm");
        as_user(4000, groups, move || std::os::unix::net::UnixStream::connect(path).expect("everyone may connect"))
    };
    let refused = connect(&[4001]);
    eventually("the hypervisor is refused", || daemon.log().contains("a hypervisor is refused"));
    drop(refused);
    let _welcome = connect(&[4001, 4002]);
    eventually("the hypervisor is admitted", || daemon.log().contains("a hypervisor attached"));
    assert_eq!(daemon.log().matches("a hypervisor is refused").count(), 1);
}

/// The kernel gives 0 as the process of such a client.
#[test]
fn client_that_the_pid_namespace_of_the_daemon_does_not_show_is_served() {
    if !is_root() {
        return skip("a PID namespace", "only root can make one");
    }
    let prefix = ["unshare", "--pid", "--fork", "--kill-child"];
    let daemon = Daemon::start_in(Scratch::new(), &prefix, &["--disk", "a=memory:1M"]);
    let mut client = daemon.blocking("a");
    client.write_at(&[7; 4096], 0).expect("written");
    assert_says(&daemon.log(), &["attached", "pid=0"]);
}

#[test]
fn user_at_its_limit_of_clients_leaves_room_for_others() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    for (settings, share) in [("max_clients = 8\nmax_clients_per_user = 3", 3), ("max_clients = 4", 3), ("max_clients = 1", 1)] {
        let daemon = start(settings);
        let mut held: Vec<_> = (0..share).map(|_| attach_as(&daemon, 4000, &[]).expect("within the share")).collect();
        if settings != "max_clients = 1" {
            let text = refusal_of(attach_as(&daemon, 4000, &[]), RefusalCode::Limit);
            assert_says(&text, &[&format!("user 4000 has {share} clients here"), "raise max_clients_per_user"]);
            drop(attach_as(&daemon, 4001, &[]).expect("another user's place"));
            eventually("its place is free again", || daemon.attached_count("a") == share);
            CorrectClient::new(&daemon, "a").check();
        }
        held.pop();
        eventually("a place is free", || attach_as(&daemon, 4000, &[]).is_ok());
    }
}

#[test]
fn root_may_have_every_place() {
    if !is_root() {
        return skip("attach as root", "this is another user");
    }
    let daemon = start("max_clients = 4\nmax_clients_per_user = 1");
    let mut correct_clients: Vec<_> = (0..4).map(|_| CorrectClient::new(&daemon, "a")).collect();
    correct_clients.iter_mut().for_each(CorrectClient::check);
    let text = std::fs::read_to_string(daemon.dir.path("f.toml")).expect("the file");
    std::fs::write(daemon.dir.path("f.toml"), text.replace("max_clients_per_user = 1", "")).expect("a file");
    assert_eq!(daemon.admin(&json!({ "method": "reload" }))["changed"], json!(["max_clients_per_user"]));
}

#[test]
fn user_at_its_limit_of_descriptors_leaves_room_for_others() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let prefix = ["sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"];
    let dir = Scratch::new();
    std::fs::write(dir.path("f.toml"), "[[disk]]\nname = \"a\"\nspec = \"memory:4M\"\nallow_everyone = true\n").expect("a file");
    let daemon = Daemon::start_in(dir, &prefix, &["--config", "{dir}/f.toml"]);
    let mut held = Vec::new();
    let refused: Result<(), _> = 'full: loop {
        let (disk, queues) = match attach_as(&daemon, 4000, &[]) {
            Ok(attached) => attached,
            Err(error) => break Err(error),
        };
        let mut memories = Vec::new();
        for _ in 0..63 {
            match disk.create_memory(4096) {
                Ok(memory) => memories.push(memory),
                Err(error) => break 'full Err(error),
            }
        }
        held.push((disk, queues, memories));
        assert!(held.len() < 60, "one user had everything");
    };
    let text = refusal_of(refused, RefusalCode::Limit);
    assert_says(&text, &["user 4000 hold", "one user may hold", "register fewer memories"]);
    let socket = daemon.socket();
    let mut other =
        as_user(4001, &[], move || Blocking::attach(&socket, &Daemon::options("a"))).expect("there is room for others");
    other.write_at(&[7; 4096], 0).expect("written");
    CorrectClient::new(&daemon, "a").check();
}

#[test]
fn user_at_its_limit_of_memory_leaves_room_for_others() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let daemon = start("max_memory_bytes_per_user = \"8M\"");
    let attach = |id: u32, pool_bytes: u64| {
        let (socket, options) = (daemon.socket(), AttachOptions { pool_bytes, ..Daemon::options("a") });
        as_user(id, &[], move || Disk::attach(&socket, &options))
    };
    let refused = |result: Result<(), Error>| {
        assert_says(
            &refusal_of(result, RefusalCode::Limit),
            &["the clients of user 4000 have", "one user may have 8388608", "register less", "max_memory_bytes_per_user"],
        );
    };
    let (first, first_queues) = attach(4000, 2 << 20).expect("within the limit");
    let (second, _second) = attach(4000, 2 << 20).expect("within the limit");
    // The sum over both, of pools and of what they register.
    let memory = first.create_memory(3 << 20).expect("within the limit");
    refused(second.create_memory(2 << 20).map(drop));
    refused(attach(4000, 2 << 20).map(drop));
    let _last = second.create_memory(1 << 20).expect("exactly the limit");
    refused(second.create_memory(4096).map(drop));
    for id in [0, 4001] {
        let (other, _queues) = attach(id, 4 << 20).expect("another user");
        let _memory = other.create_memory(2 << 20).expect("another user");
    }
    first.unregister(&memory).expect("it is registered");
    drop(attach(4000, 2 << 20).expect("it has been released"));
    std::fs::write(
        daemon.dir.path("f.toml"),
        "max_memory_bytes_per_user = \"64M\"\n[[disk]]\nname = \"a\"\nspec = \"memory:4M\"\nallow_everyone = true\n",
    )
    .expect("a file");
    assert_eq!(daemon.admin(&json!({ "method": "reload" }))["changed"], json!(["max_memory_bytes_per_user"]));
    let _more = second.create_memory(16 << 20).expect("raised for clients that are there, too");
    drop((first, first_queues, memory));
    eventually("it is gone", || daemon.attached_count("a") == 1);
    let _third = attach(4000, 32 << 20).expect("what is gone no longer counts");
}
