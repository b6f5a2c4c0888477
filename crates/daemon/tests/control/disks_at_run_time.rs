//! Disks that the admin socket adds, removes and sets: they survive a reload and a takeover, and are gone at a restart.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use fipsee_block::client::{AttachOptions, Claim, Disk};
use fipsee_daemon::admin::{admin_path, send};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::daemon::json_rpc;
use fipsee_testkit::hypervisor::Hypervisor;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, as_user, assert_says, eventually, is_root, refusal_of, skip};
use serde_json::{Value, json};

const ONE_DISK: &str = "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n";

fn write(dir: &Scratch, text: &str) {
    // Disks may be files beside its socket.
    let text = format!("confine_paths = [\"{{dir}}\"]\n{text}");
    std::fs::write(dir.path("f.toml"), dir.fill(&text)).expect("a file");
}

fn with_file(text: &str) -> Daemon {
    let dir = Scratch::new();
    write(&dir, text);
    Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"])
}

/// Its disks may be files beside its socket.
fn without_file() -> Daemon {
    Daemon::start(&["--disk", "a=memory:1M", "--confine-path", "{dir}"])
}

#[track_caller]
fn refused(daemon: &Daemon, request: &Value) -> String {
    let answer = daemon.admin(request);
    answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}")).to_owned()
}

fn add(daemon: &Daemon, spec: &str) -> Value {
    daemon.ask(&json!({ "method": "disk.add", "spec": daemon.dir.fill(spec) }))
}

fn disks(daemon: &Daemon) -> Vec<String> {
    let list = daemon.ask(&json!({ "method": "disk.list" }));
    let name = |disk: &Value| disk["disk"].as_str().expect("a name").to_owned();
    list["disks"].as_array().expect("a list").iter().map(name).collect()
}

fn attach(daemon: &Daemon, name: &str) -> Result<(), fipsee_block::client::Error> {
    Disk::attach(&daemon.socket(), &AttachOptions::new(name)).map(drop)
}

#[test]
fn added_disk_is_served_and_a_removed_one_is_closed_with_and_without_a_file() {
    for daemon in [with_file(ONE_DISK), without_file()] {
        let mut correct_client = CorrectClient::new(&daemon, "a");
        drop(CorrectClient::new(&daemon, "a"));
        eventually("the second client is gone", || daemon.attached_count("a") == 1);
        assert_eq!(add(&daemon, "b=file:{dir}/b.img,size=1M")["size_bytes"], 1 << 20);
        assert_eq!(disks(&daemon), ["a", "b"]);
        CorrectClient::new(&daemon, "b").check();
        eventually("the client of b is gone", || daemon.attached_count("b") == 0);
        assert_eq!(daemon.ask(&json!({ "method": "disk.remove", "disk": "b" }))["disk"], "b");
        assert_eq!(disks(&daemon), ["a"]);
        refusal_of(attach(&daemon, "b"), RefusalCode::UnknownName);
        // Its lock is released, and its contents stay.
        assert_eq!(add(&daemon, "c=file:{dir}/b.img")["size_bytes"], 1 << 20);
        correct_client.check();
    }
}

#[test]
fn what_cannot_be_added_leaves_nothing_behind() {
    let daemon = without_file();
    let (new, socket) = (daemon.dir.path("new"), daemon.dir.path("vm"));
    let shown = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let of_file = format!("b=file:{},size=1M", shown(&new));
    for (request, pieces) in [
        (json!({ "spec": "a=null:1M" }), &["disk 'a' is served already", "remove it first"][..]),
        (json!({ "spec": "b=tape:1M" }), &["unknown kind 'tape'"]),
        (json!({ "spec": "b" }), &["there is no '='"]),
        (json!({ "spec": "b=null:1M", "path": "/x" }), &["only a file disk has a path"]),
        (json!({ "spec": "b=file:x,size=1M" }), &["is no absolute path"]),
        (json!({ "spec": "b=null:1M", "vhost_user": ["vm"] }), &["is no absolute path"]),
        (json!({ "spec": "b=null:1M", "file_passed": true }), &["no descriptor came"]),
        (json!({ "spec": format!("b=file:{}", shown(&new)) }), &["does not exist; add size=SIZE"]),
        (json!({ "spec": of_file, "vhost_user": [shown(&socket), "/no/such/folder/vm"] }), &["for its vhost-user socket"]),
        (json!({ "spec": of_file, "vhost_user": [shown(&socket), shown(&socket)] }), &["already listens at"]),
    ] {
        let mut request = request;
        request["method"] = "disk.add".into();
        assert_says(&refused(&daemon, &request), pieces);
        assert!(!new.exists() && !socket.exists(), "{request}");
    }
    assert_eq!(disks(&daemon), ["a"]);
}

#[test]
fn disk_in_use_is_not_removed() {
    let daemon = without_file();
    add(&daemon, "b=memory:1M");
    for disk in ["a", "b"] {
        let mut correct_client = CorrectClient::new(&daemon, disk);
        let text = refused(&daemon, &json!({ "method": "disk.remove", "disk": disk }));
        assert_says(&text, &[disk, "in use by process", &std::process::id().to_string(), "end that first"]);
        correct_client.check();
        // It still takes further clients.
        CorrectClient::new(&daemon, disk).check();
    }
    assert_says(&refused(&daemon, &json!({ "method": "disk.remove", "disk": "z" })), &["no disk 'z'", "there are: a, b"]);
}

#[test]
fn virtual_machine_keeps_its_disk_and_sockets_go_with_theirs() {
    let daemon = without_file();
    let path = daemon.dir.path("vm");
    daemon.ask(&json!({ "method": "disk.add", "spec": "b=memory:1M", "vhost_user": [path] }));
    let machine = Hypervisor::connect(&path);
    eventually("the machine is there", || daemon.attached_count("b") == 1);
    let text = refused(&daemon, &json!({ "method": "disk.remove", "disk": "b" }));
    assert_says(&text, &["in use by process"]);
    drop(machine);
    eventually("the machine is gone", || daemon.admin(&json!({ "method": "disk.remove", "disk": "b" }))["error"].is_null());
    assert!(!path.exists());
}

#[test]
fn changes_survive_takeovers_and_reloads_and_are_gone_at_a_restart() {
    for (mut daemon, has_file) in
        [(with_file(&format!("{ONE_DISK}{}", ONE_DISK.replace("\"a\"", "\"r\""))), true), (without_file(), false)]
    {
        let path = daemon.dir.path("vm");
        add(&daemon, "b=file:{dir}/b,size=1M");
        daemon.ask(&json!({ "method": "disk.add", "spec": "c=memory:1M", "allow_uids": [4711], "vhost_user": [path] }));
        daemon.ask(&json!({ "method": "disk.set", "disk": "a", "shared": true }));
        daemon.ask(&json!({ "method": "disk.set", "disk": "b", "shared": true }));
        if has_file {
            daemon.ask(&json!({ "method": "disk.remove", "disk": "r" }));
        }
        let mut correct_clients = ["b", "c"].map(|disk| CorrectClient::new(&daemon, disk));
        let mut check = |daemon: &Daemon, when: &str| {
            assert_eq!(disks(daemon), ["a", "b", "c"], "{when}");
            for disk in ["a", "b"] {
                assert_eq!(daemon.ask(&json!({ "method": "disk.info", "disk": disk }))["shared"], true, "{when}");
            }
            assert_says(&dump(daemon), &["allow_uids = [4711]"]);
            correct_clients.iter_mut().for_each(CorrectClient::check);
            assert!(path.exists(), "{when}");
        };
        for round in 0..2 {
            check(&daemon, "before");
            daemon.take_over();
            check(&daemon, &format!("takeover {round}"));
            if has_file {
                assert_eq!(daemon.ask(&json!({ "method": "reload" }))["removed"], json!([]));
                check(&daemon, &format!("reload {round}"));
            }
        }
        drop(correct_clients);
        daemon.signal_term();
        assert!(daemon.await_exit().success());
        daemon.restart();
        assert_eq!(disks(&daemon), if has_file { &["a", "r"][..] } else { &["a"] });
        assert_eq!(daemon.ask(&json!({ "method": "disk.info", "disk": "a" }))["shared"], false);
    }
}

#[test]
fn disk_that_is_configured_later_is_the_configured_one() {
    let daemon = with_file(ONE_DISK);
    add(&daemon, "b=memory:1M");
    let mut correct_client = CorrectClient::new(&daemon, "b");
    let with_b = |size: &str| format!("{ONE_DISK}[[disk]]\nname = \"b\"\nspec = \"memory:{size}\"\nallow_uids = [4711]\n");
    write(&daemon.dir, &with_b("2M"));
    let text = refused(&daemon, &json!({ "method": "reload" }));
    assert_says(
        &text,
        &["disk 'b' is in the configuration as b=memory:2097152", "added at run time as b=memory:1048576", "disk remove b"],
    );
    write(&daemon.dir, &with_b("1M"));
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!(["disk 'b'"]));
    correct_client.check();
    drop(correct_client);
    eventually("the client is gone", || daemon.attached_count("b") == 0);
    write(&daemon.dir, ONE_DISK);
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["removed"], json!(["b"]), "as any disk of the file");
}

#[test]
fn configured_disk_and_socket_that_were_removed_stay_away() {
    let file = format!("{ONE_DISK}vhost_user = \"{{dir}}/vm\"\n[[disk]]\nname = \"b\"\nspec = \"memory:1M\"\n");
    let mut daemon = with_file(&file);
    let path = daemon.dir.path("vm");
    daemon.ask(&json!({ "method": "disk.detach", "vhost_user": path }));
    daemon.ask(&json!({ "method": "disk.remove", "disk": "b" }));
    assert_eq!(
        daemon.ask(&json!({ "method": "reload" })),
        json!({ "added": [], "removed": [], "changed": [], "needs_restart": [] })
    );
    daemon.take_over();
    daemon.ask(&json!({ "method": "reload" }));
    assert!(disks(&daemon) == ["a"] && !path.exists());
    daemon.ask(&json!({ "method": "disk.attach", "disk": "a", "vhost_user": path }));
    add(&daemon, "b=memory:2M");
    daemon.take_over();
    daemon.ask(&json!({ "method": "reload" }));
    assert!(disks(&daemon) == ["a", "b"] && path.exists());
    assert_eq!(daemon.ask(&json!({ "method": "disk.info", "disk": "b" }))["size_bytes"], 2 << 20);
}

#[test]
fn size_that_was_changed_survives_a_takeover_and_is_dumped() {
    let mut daemon = without_file();
    add(&daemon, "b=memory:1M,max=4M");
    for disk in ["a", "b"] {
        daemon.ask(&json!({ "method": "disk.resize", "disk": disk, "size_bytes": 512 << 10, "shrink": true }));
    }
    daemon.take_over();
    for disk in ["a", "b"] {
        assert_eq!(daemon.ask(&json!({ "method": "disk.info", "disk": disk }))["size_bytes"], 512 << 10);
    }
    assert_says(&dump(&daemon), &["spec = \"memory:524288,max=4194304\""]);
}

#[test]
fn lists_of_users_apply_to_clients_that_attach_from_now_on() {
    if !is_root() {
        return skip("attach as another user", "only root can be one");
    }
    let daemon = without_file();
    let attach_as = |user: u32| {
        let socket = daemon.socket();
        as_user(user, &[], move || Disk::attach(&socket, &Daemon::options("a")))
    };
    std::fs::set_permissions(&daemon.dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    assert!(attach_as(4000).is_err());
    daemon.ask(&json!({ "method": "disk.set", "disk": "a", "allow_uids": [4000], "allow_gids": [4001] }));
    let attached = attach_as(4000).expect("on the list");
    attach_as(4001).expect("its group is on the list");
    daemon.ask(&json!({ "method": "disk.set", "disk": "a", "allow_uids": [] }));
    assert!(attach_as(4000).is_err(), "no longer");
    attach_as(4001).expect("this list was not named");
    daemon.ask(&json!({ "method": "disk.set", "disk": "a", "allow_everyone": true }));
    attach_as(4000).expect("everyone");
    drop(attached);
}

#[test]
fn an_exclusive_disk_is_not_shared_and_nothing_is_set_without_a_setting() {
    let daemon = without_file();
    add(&daemon, "x=memory:1M,exclusive");
    for (request, piece) in [
        (json!({ "method": "disk.set", "disk": "x", "shared": true }), "disk 'x': exclusive and shared contradict"),
        (json!({ "method": "disk.set", "disk": "x" }), "nothing is set"),
    ] {
        assert_says(&refused(&daemon, &request), &[piece]);
    }
    assert!(dump(&daemon).contains("memory:1048576,exclusive\""));
}

#[test]
fn disks_that_come_and_go_leave_clients_their_descriptors() {
    let daemon = without_file();
    let before = daemon.fd_count();
    for _ in 0..2000 {
        add(&daemon, "n=null:1M");
        daemon.ask(&json!({ "method": "disk.remove", "disk": "n" }));
    }
    CorrectClient::new(&daemon, "a").check();
    eventually("all is closed", || daemon.fd_count() <= before);
}

#[test]
fn a_disk_can_be_shared_from_now_on() {
    let daemon = without_file();
    let sole = AttachOptions { claim: Claim::SoleWriter, ..AttachOptions::new("a") };
    let first = daemon.attach(&sole).expect("attached");
    refusal_of(daemon.attach(&sole), RefusalCode::Busy);
    daemon.ask(&json!({ "method": "disk.set", "disk": "a", "shared": true }));
    let text = refusal_of(daemon.attach(&sole), RefusalCode::Busy);
    assert_says(&text, &["is its sole writer"]);
    drop(first);
    eventually("it is gone", || daemon.attached_count("a") == 0);
    let _both = [daemon.attach(&sole).expect("shared"), daemon.attach(&sole).expect("shared")];
}

fn dump(daemon: &Daemon) -> String {
    daemon.ask(&json!({ "method": "config.dump" }))["toml"].as_str().expect("a text").to_owned()
}

#[test]
fn dumped_configuration_starts_the_same_daemon() {
    let file = "max_clients = 77\nwait = \"sleep\"\nlook_us = 5\nlog_level = \"info,fipsee_daemon=debug\"\n\
                [[disk]]\nname = \"a\"\nspec = \"memory:1M\"\nallow_gids = [7]\nvhost_user = \"{dir}/vm\"\n\
                [[disk]]\nname = \"p\"\nspec = \"file:,size=1M,direct=off\"\npath = \"{dir}/p,\\\"q\\\"\"\n\
                [[disk]]\nname = \"gone\"\nspec = \"memory:1M\"\n";
    let mut daemon = with_file(file);
    add(&daemon, "b=delay:1ms+2ms,seed=5:memory:1M,ro,shared");
    daemon.ask(&json!({ "method": "disk.set", "disk": "a", "allow_everyone": true }));
    daemon.ask(&json!({ "method": "disk.remove", "disk": "gone" }));
    let dumped = dump(&daemon);
    assert_says(&dumped, &["max_clients = 77\n", "# added at run time\n", "# set at run time\n", "path = ", "vhost_user = "]);
    assert!(!dumped.contains("gone"), "{dumped}");
    let mut checked = std::process::Command::new(env!("CARGO_BIN_EXE_fipseed"));
    std::fs::write(daemon.dir.path("dumped.toml"), &dumped).expect("a file");
    let output = checked.arg("--config").arg(daemon.dir.path("dumped.toml")).arg("--check-config").output().expect("it runs");
    assert!(output.status.success(), "{}\n{dumped}", String::from_utf8_lossy(&output.stderr));
    let list = |daemon: &Daemon| daemon.ask(&json!({ "method": "disk.list" }));
    let before = list(&daemon);
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    daemon.restart_with("f.toml", "dumped.toml");
    assert_eq!(list(&daemon), before);
    let again = dump(&daemon);
    let plain = |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(plain(&again), plain(&dumped));
}

#[test]
fn dumped_configuration_starts_a_daemon_whatever_was_set_of_workers_users_and_groups() {
    let with_users = |users: &str| {
        format!(
            "workers = 3\n[[group]]\nname = \"g\"\nusers = [{users}]\nmachines = [\"b\"]\n\
             [[group]]\nname = \"h\"\nmachines = [\"c\"]\niops = 7\n\
             {ONE_DISK}dedicated = true\n[[disk]]\nname = \"b\"\nspec = \"null:1M\"\n[[disk]]\nname = \"c\"\nspec = \"null:1M\"\n"
        )
    };
    let mut daemon = with_file(&with_users("4001"));
    // Fewer than the dedicated disk needs.
    daemon.ask(&json!({ "method": "workers.set", "workers": "1" }));
    daemon.ask(&json!({ "method": "limit.set", "user": 4002, "iops": 9 }));
    for disk in ["b", "c"] {
        daemon.ask(&json!({ "method": "disk.remove", "disk": disk }));
    }
    let of_user = |daemon: &Daemon| {
        let list = daemon.ask(&json!({ "method": "limit.list" }));
        list["limits"].as_array().expect("a list").iter().any(|limit| limit["user"] == 4002)
    };
    assert!(of_user(&daemon));
    write(&daemon.dir, &with_users("4001, 4002"));
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!(["group 'g'"]));
    assert!(!of_user(&daemon), "those of the group count");
    let dumped = dump(&daemon);
    assert_says(&dumped, &["\nworkers = 3\n# in use now: workers = 1\n", "dedicated = true", "users = [4001, 4002]"]);
    std::fs::write(daemon.dir.path("dumped.toml"), &dumped).expect("a file");
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    daemon.restart_with("f.toml", "dumped.toml");
    assert_eq!(disks(&daemon), ["a"]);
}

/// A file where the daemon may not open it, and the request that passes it.
fn passed(daemon: &Daemon, file: &std::fs::File, spec: &str) -> Value {
    let request = json!({ "method": "disk.add", "spec": spec, "file_passed": true });
    let stream = UnixStream::connect(admin_path(&daemon.socket())).expect("an admin socket");
    send(&stream, json_rpc(&request).as_bytes(), &[file.as_fd()]).expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it answers");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_file_elsewhere_is_served_when_it_is_passed() {
    let elsewhere = Scratch::new();
    let mut daemon = without_file();
    let path = elsewhere.file("disk", vec![7; 1 << 20]);
    let spec = format!("f=file:{}", path.display());
    let answer = daemon.admin_answer(&json!({ "method": "disk.add", "spec": spec }));
    let is_confined = daemon.log().contains("landlock=true");
    if !is_confined {
        return skip("a file that a confined daemon cannot open", "this kernel has no landlock");
    }
    assert_eq!(answer["error"]["data"]["pass_file"], true, "{answer}");
    assert_says(answer["error"]["message"].as_str().expect("a text"), &["landlock", "confine_paths"]);
    let open = |how: &std::fs::OpenOptions| how.open(&path).expect("ours");
    let (reading, writing) = (open(std::fs::File::options().read(true)), open(std::fs::File::options().read(true).write(true)));
    for (file, spec, piece) in [
        (&reading, &spec, "is open otherwise as far as ro goes"),
        (&writing, &format!("{spec},ro"), "is open otherwise as far as ro goes"),
        (&writing, &"f=memory:1M".to_owned(), "has no file"),
        (&std::fs::File::open(&elsewhere.0).expect("ours"), &spec, "is a directory"),
    ] {
        assert_says(passed(&daemon, file, spec)["error"]["message"].as_str().expect("refused"), &[piece]);
    }
    let stream = UnixStream::connect(admin_path(&daemon.socket())).expect("an admin socket");
    let mut lines = BufReader::new(&stream);
    for (file, wrong) in [(Some(writing.as_fd()), json!(7)), (None, json!(true))] {
        let request = json_rpc(&json!({ "method": "disk.add", "spec": spec, "file_passed": wrong }));
        send(&stream, request.as_bytes(), file.as_slice()).expect("it reads");
        let mut line = String::new();
        lines.read_line(&mut line).expect("it answers");
        // The file of the refused request is not that of the next one.
        assert!(line.contains("error") && (file.is_some() || line.contains("no descriptor came")), "{line}");
    }
    assert_eq!(passed(&daemon, &writing, &spec)["result"]["size_bytes"], 1 << 20);
    drop(writing);
    let mut read = vec![0; 4096];
    daemon.blocking("f").read_at(&mut read, 0).expect("read");
    assert_eq!(read, vec![7; 4096]);
    // Its lock is held, and neither a takeover nor a resize needs the path.
    std::fs::rename(&path, elsewhere.path("moved")).expect("ours");
    daemon.take_over();
    let mut correct_client = CorrectClient::new(&daemon, "f");
    daemon.take_over();
    correct_client.check();
    let text = fipsee_testkit::refused(&["--disk", &format!("g=file:{}", elsewhere.path("moved").display())]);
    assert_says(&text, &["is in use by process"]);
    assert_eq!(daemon.ask(&json!({ "method": "disk.resize", "disk": "f", "size_bytes": 2 << 20 }))["size_bytes"], 2 << 20);
    assert_eq!(std::fs::metadata(elsewhere.path("moved")).expect("there").len(), 2 << 20);
}

#[test]
fn users_without_the_right_to_administer_change_nothing() {
    if !is_root() {
        return skip("administer as another user", "only root can be one");
    }
    let daemon = without_file();
    std::fs::set_permissions(&daemon.dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let admin = admin_path(&daemon.socket());
    let connected = as_user(4000, &[], move || UnixStream::connect(admin));
    assert_eq!(connected.expect_err("not admitted").kind(), std::io::ErrorKind::PermissionDenied);
}
