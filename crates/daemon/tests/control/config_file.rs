//! The configuration file: keys and specifications of disks, sizes, and what is said about mistakes.

use fipsee_block::disk::DiskSpec;
use fipsee_daemon::config::disks_of;
use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, refused, refused_in};
use rustix::process::Signal;

/// Words of programmers, which no user should have to read.
const OF_PROGRAMMERS: [&str; 9] =
    ["unknown variant", "unknown field", "invalid type", "expected struct", "invalid digit", "usize", "u32", "Some(", "Err("];

#[track_caller]
fn assert_helps(text: &str, pieces: &[&str]) {
    assert_says(text, pieces);
    let found: Vec<_> = OF_PROGRAMMERS.into_iter().filter(|words| text.contains(words)).collect();
    assert!(found.is_empty(), "{found:?} in: {text}");
}

fn only(keys: &str) -> DiskSpec {
    let disks = disks_of(&format!("[[disk]]\nname = \"a\"\n{keys}\n")).unwrap_or_else(|error| panic!("{keys}: {error}"));
    disks.into_iter().next().expect("one disk").spec
}

#[test]
fn keys_and_specification_describe_the_same_disk() {
    for (keys, spec) in [
        ("kind = \"null\"\nsize = \"1G\"", "null:1G"),
        ("kind = \"null\"\nsize = 4096\nblock = 4096\nexclusive = true", "null:4K,block=4096,exclusive"),
        ("kind = \"memory\"\nsize = \"256M\"", "memory:256M"),
        (
            "kind = \"memory\"\nsize = \"1MiB\"\nmax = \"1G\"\npages = \"thp\"\nlock = true\novercommit = true\nread_only = true",
            "memory:1M,max=1G,thp,lock,overcommit,ro",
        ),
        ("kind = \"memory\"\nsize = 0x100000\npages = \"huge\"", "memory:1M,huge"),
        ("kind = \"file\"\npath = \"/srv/a.img\"", "file:/srv/a.img"),
        (
            "kind = \"file\"\npath = \"/srv/a.img\"\nsize = \"1T\"\nblock = \"4K\"\ndirect = \"off\"\nshared = true",
            "file:/srv/a.img,size=1T,block=4096,direct=off,shared",
        ),
        (
            "kind = \"memory\"\nsize = \"1M\"\ndelay = { time = \"2ms\", random = \"1ms\", seed = 4 }",
            "delay:2ms+1ms,seed=4:memory:1M",
        ),
        (
            "kind = \"null\"\nsize = \"1M\"\npowercut = { survive = 30, cache = \"1M\" }\ndelay = { time = \"1ms\" }\n\
             error = { every = 3, op = [\"read\", \"flush\"], sectors = \"8-15\", errno = \"ENOSPC\" }",
            "delay:1ms:error:every=3,op=read+flush,sectors=8-15,errno=ENOSPC:powercut:survive=30,cache=1M:null:1M",
        ),
        ("kind = \"file\"\npath = \"/a\"\npowercut = {}", "powercut:file:/a"),
    ] {
        let parsed = DiskSpec::parse(&format!("a={spec}")).expect("a specification");
        assert_eq!(only(keys), parsed, "{keys}");
        assert_eq!(only(&format!("spec = \"{spec}\"")), parsed);
    }
    let with_comma = only("kind = \"file\"\npath = \"/srv/b,1.img\"\nsize = \"1G\"");
    assert_eq!(with_comma, only("spec = \"file:,size=1G\"\npath = \"/srv/b,1.img\""));
}

/// Every text is refused with these pieces, at a place of the file.
#[track_caller]
fn assert_refused(texts: &[(String, &[&str])]) {
    for (text, pieces) in texts {
        let error = disks_of(text).map(|_| ()).expect_err(text);
        assert_helps(&error, pieces);
        assert!(error.starts_with("line "), "{error}");
    }
}

fn disk(keys: &str) -> String {
    format!("[[disk]]\nname = \"a\"\n{keys}\n")
}

#[test]
fn mistakes_in_settings_and_tables_are_named_with_their_place_and_what_to_write() {
    assert_refused(&[
        // Keys.
        ("wokers = 2".to_owned(), &["line 1, column 1: unknown key 'wokers'; did you mean 'workers'?", "1 | wokers = 2"][..]),
        ("zzz = 2".to_owned(), &["unknown key 'zzz'; the keys here are listen, workers"]),
        ("size = \"1G\"".to_owned(), &["unknown key 'size'; it belongs in a table of a disk"]),
        (disk("spec = \"null:1M\"\n  readonly = true"), &["line 4, column 3: unknown key 'readonly'; did you mean 'read_only'?"]),
        (disk("spec = \"null:1M\"\nworkers = 2"), &["line 4, column 1", "'workers'; it belongs above the first [[disk]]"]),
        ("workers = 1\nworkers = 2".to_owned(), &["line 2, column 1: this key is there twice"]),
        // Text that is no TOML.
        ("listen = /run/x".to_owned(), &["line 1, column 10: text must be in quotes"]),
        ("max_pool_bytes = 64M".to_owned(), &["line 1, column 18: text must be in quotes: \"64M\""]),
        ("listen = \"/run/x\nworkers = 2".to_owned(), &["line 1, column 17: the text has no closing quote"]),
        ("workers: 2".to_owned(), &["line 1, column 10: the key has no value; write key = value"]),
        ("workers".to_owned(), &["line 1, column 8: the key has no value; write key = value"]),
        // Values of settings.
        ("workers = \"two\"".to_owned(), &["line 1, column 11: workers: \"two\" is not possible", "1 to 512, without quotes"]),
        ("workers = 0".to_owned(), &["workers: 0 is not possible; write an integer from 1 to 512"]),
        ("workers = 1.5".to_owned(), &["workers: 1.5 is not possible; write an integer"]),
        ("max_clients = -1".to_owned(), &["max_clients: -1 is not possible; write an integer from 1"]),
        ("max_clients = 0".to_owned(), &["max_clients: 0 is not possible; write an integer from 1"]),
        ("max_queues = 0".to_owned(), &["max_queues: 0 is not possible; write an integer from 1"]),
        ("max_depth = 0".to_owned(), &["max_depth: 0 is not possible; write an integer from 1"]),
        ("max_pool_bytes = 0".to_owned(), &["max_pool_bytes: 0 is not possible", "write for example \"64M\""]),
        (
            "max_clients_per_user = 5000\nmax_clients = 10".to_owned(),
            &["line 1, column 1: max_clients_per_user: 5000 is more than max_clients, 10", "lower it, or raise max_clients"],
        ),
        ("listen = \"\"".to_owned(), &["line 1, column 10: listen: the path is empty; write one, or remove the key"]),
        ("max_queues = 70000".to_owned(), &["max_queues: 70000 is not possible; write an integer from 1 to 65535"]),
        ("cpus = 2".to_owned(), &["cpus: 2 is not a list; write brackets around it: [2, 3]"]),
        ("listen = 5".to_owned(), &["listen: write text in quotes: \"5\""]),
        ("listen = true".to_owned(), &["listen: write text in quotes: \"true\""]),
        ("confine = \"yes\"".to_owned(), &["confine: \"yes\" is not possible; use \"best-effort\" or \"required\" or \"off\""]),
        ("log_format = \"xml\"".to_owned(), &["log_format: \"xml\" is not possible; use \"text\" or \"json\""]),
        ("log_level = \"loud\"".to_owned(), &["log_level: unknown log level 'loud'; use error, warn"]),
        ("wait = \"nap\"".to_owned(), &["wait: unknown wait mode 'nap'; use adaptive"]),
        (
            "max_pool_bytes = \"64X\"".to_owned(),
            &["max_pool_bytes: '64X' is not a size; write an integer, alone (bytes) or with K"],
        ),
        ("max_memory_bytes = -5".to_owned(), &["max_memory_bytes: -5 is not a size; write bytes, or text with a unit"]),
        // Tables.
        ("[disk]\nname = \"a\"".to_owned(), &["line 1", "write [[disk]], in two pairs of brackets"]),
        ("disk = [1]".to_owned(), &["a disk is a table; write [[disk]]"]),
        ("[[disk]]\nspec = \"null:1M\"".to_owned(), &["line 1", "the disk needs a name: name = \"a\""]),
        ("[[disk]]\nname = \"\"\nspec = \"null:1M\"".to_owned(), &["line 2, column 1: disk ''", "use 1 to 64 letters"]),
        (
            disk("spec = \"null:1M\"") + &disk("spec = \"null:2M\""),
            &["line 5, column 1: disk 'a' is defined twice; give each its own name"],
        ),
        ("[[disk]]\nname = 5\nspec = \"null:1M\"".to_owned(), &["name: write text in quotes: \"5\""]),
    ]);
}

#[test]
fn disk_that_is_described_in_no_way_or_two_is_refused() {
    assert_refused(&[
        (disk(""), &["line 1, column", "disk 'a': it is not said what the disk is; write kind = \"file\""]),
        (
            disk("spec = \"null:1M\"\nkind = \"null\""),
            &["line 4, column 1: disk 'a': kind and spec both say", "remove one of them"],
        ),
        (disk("spec = \"null:1M\"\nsize = \"1M\""), &["line 4, column 1: disk 'a': size cannot be beside spec"]),
        (disk("spec = \"null:1M\"\ndelay = { time = \"1ms\" }"), &["delay cannot be beside spec"]),
        (disk("spec = \"null:1M,shared\"\nexclusive = true"), &["line 4, column 1: disk 'a': exclusive and shared contradict"]),
        (disk("spec = \"null:1M,shared,exclusive\""), &["line 3, column 8: disk 'a': spec: exclusive and shared contradict"]),
        (disk("spec = \"\""), &["line 3, column 8: disk 'a': spec: the kind is missing; write KIND:ARGS"]),
        (disk("spec = \"tape:1M\""), &["line 3, column 8: disk 'a': spec: unknown kind 'tape'; use null, memory or file"]),
        (disk("spec = \"memory:1M\"\npath = \"/x\""), &["disk 'a': only a file disk has a path; remove it"]),
        (disk("spec = \"file:/y,size=1G\"\npath = \"/x\""), &["spec has a path, too; remove one of them"]),
        (disk("kind = \"tape\""), &["kind: \"tape\" is not possible; write \"file\" or \"memory\" or \"null\""]),
        (disk("kind = \"file\"\nsize = \"1G\""), &["disk 'a': path is missing; write path = \"/srv/disk.img\""]),
    ]);
}

#[test]
fn mistakes_in_the_keys_of_disks_are_named_with_their_place_and_what_to_write() {
    assert_refused(&[
        (disk("kind = \"memory\""), &["disk 'a': size is missing; write size = \"256M\""]),
        (disk("kind = \"memory\"\nsize = \"1GB\""), &["line 4, column 8", "size: '1GB' is not a size"]),
        (disk("kind = \"memory\"\nsize = true"), &["size: true is not a size; write bytes, or text with a unit: \"64M\""]),
        (
            disk("kind = \"memory\"\nsize = \"1G\"\ndirect = \"on\""),
            &["line 5, column 1: disk 'a': a memory disk has no direct; remove it"],
        ),
        (disk("kind = \"null\"\nsize = \"1G\"\nlock = true"), &["a null disk has no lock; remove it (it can have size, block)"]),
        (disk("kind = \"file\"\npath = \"/x\"\nblock = 1024"), &["block: 1024 is not possible; write 512 or 4096"]),
        (
            disk("kind = \"file\"\npath = \"/x\"\ndirect = true"),
            &["direct: true is not possible; write \"auto\" or \"on\" or \"off\""],
        ),
        (
            disk("kind = \"memory\"\nsize = \"1G\"\npages = \"big\""),
            &["pages: \"big\" is not possible; write \"huge\" or \"thp\""],
        ),
        (
            disk("kind = \"null\"\nsize = 512\nshared = \"yes\""),
            &["shared: \"yes\" is not possible; write true or false, without quotes"],
        ),
        (
            disk("kind = \"null\"\nsize = 512\nallow_uids = [\"alice\"]"),
            &["allow_uids: \"alice\" is not possible; write an integer", "names are for allow_users"],
        ),
        (
            disk("kind = \"null\"\nsize = 512\nallow_gids = [\"disk\"]"),
            &["allow_gids: \"disk\" is not possible; write an integer", "names are for allow_groups"],
        ),
        (disk("kind = \"null\"\nsize = 512\nvhost_user = \"\""), &["line 5, column 14: disk 'a': vhost_user: the path is empty"]),
        (disk("kind = \"null\"\nsize = 512\nallow_users = \"alice\""), &["allow_users: \"alice\" is not a list", "[\"alice\"]"]),
        (disk("kind = \"null\"\nsize = 512\ndelay = \"5ms\""), &["delay: \"5ms\" is not possible; write its options in braces"]),
        (
            disk("kind = \"null\"\nsize = 512\ndelay = { seed = 1 }"),
            &["delay: the time is missing; write delay = { time = \"5ms\" }"],
        ),
        (disk("kind = \"null\"\nsize = 512\nerror = { every = 0 }"), &["error: every=0 is not possible; use 1"]),
        (disk("kind = \"null\"\nsize = 512\npowercut = { tear = 1 }"), &["powercut: unknown option 'tear'; it takes survive="]),
        (
            disk("kind = \"null\"\nsize = 512\npowercut = { seed = 1.5 }"),
            &["1.5 is not possible; write an integer, or text in quotes"],
        ),
    ]);
}

#[test]
fn mistakes_that_show_at_the_start_are_named_with_what_to_do() {
    let dir = Scratch::new();
    dir.file("there.img", vec![0; 1 << 20]);
    dir.file("binary.toml", [0xff, 0xfe]);
    dir.file("many.toml", format!("max_clients_per_user = 20\n{}", disk("spec = \"null:1M\"")));
    for (arguments, pieces) in [
        (
            &["--disk", "a=null:1M", "--workers", "two"][..],
            &["invalid value 'two' for '--workers <N>': write an integer, for example 2"][..],
        ),
        (&["--disk", "a=null:1M", "--workers", "-1"], &["'-1' for '--workers <N>'", "write an integer"]),
        (&["--disk", "a=null:1M", "--workers", "0"], &["0 workers; use 1 to 512"]),
        (&["--disk", "a=null:1M", "--max-clients", "many"], &["'many' for '--max-clients <N>'", "write an integer"]),
        (&["--disk", "a=null:1M", "--look-us", "1ms"], &["'1ms' for '--look-us <US>'", "write an integer"]),
        (&["--disk", "a=null:1M", "--cpus", "0,x"], &["'x' for '--cpus <LIST>'", "write an integer"]),
        (&["--disk", "a=null:1M", "--allow-uid", "alice"], &["write an integer", "or --allow-user alice"]),
        (&["--disk", "a=null:1M", "--allow-gid", "disk"], &["write an integer", "or --allow-group disk"]),
        (&["--disk", "a=null:1M", "--max-clients", "0"], &["0 clients at most; use 1 to 1048576 for --max-clients"]),
        (
            &["--disk", "a=null:1M", "--cpus", "0,1"],
            &["2 CPUs for 1 worker; ask for 2 workers (--workers, workers), or name fewer CPUs"],
        ),
        (
            &["--config", "{dir}/many.toml", "--max-clients", "10"],
            &["max_clients_per_user: 20 is more than max_clients, 10; lower it, or raise max_clients"],
        ),
        (&["--disk", "a=null:1M", "--takeover-wait-ms", "5"], &["required", "--takeover"]),
        (&["a=null:1M"], &["unexpected argument 'a=null:1M'", "tip: write --disk a=null:1M"]),
        (&["fip.toml"], &["unexpected argument 'fip.toml'", "tip: write --config fip.toml"]),
        (
            &["--disk", "a=null:1M", "--allow-user", "no-such-user"],
            &["--allow-user: there is no user 'no-such-user'", "`getent passwd`"],
        ),
        (
            &["--disk", "a=null:1M", "--allow-group", "no-such-group"],
            &["--allow-group: there is no group 'no-such-group'", "or a number"],
        ),
        (&["--disk", "a=null:1M", "--placement", "best"], &["invalid value 'best' for '--placement", "auto, off"]),
        (&["--disk", "a=null:1M", "--wokers", "2"], &["unexpected argument '--wokers'", "--workers"]),
        (&["--disk", "=null:1M"], &["disk ''", "use 1 to 64 letters"]),
        (&["--disk", "a=file:{dir}"], &["is a directory", "give the path of a file in it"]),
        (&["--disk", "a=file:{dir}/none/../none.img"], &["none/../none.img does not exist; add size=SIZE"]),
        (&["--disk", "a=file:{dir}/none.img"], &["does not exist; add size=SIZE to create it"]),
        (&["--disk", "a=file:{dir}/none/a.img,size=1M"], &["cannot be created", "check that its directory exists"]),
        (
            &["--disk", "a=file:{dir}/there.img", "--disk", "b=file:{dir}/there.img"],
            &["disks 'a' and 'b' are the same file", "give each its own"],
        ),
        (&["--config", "{dir}/none.toml"], &["cannot read", "none.toml: there is no such file; check the path"]),
        (&["--config", "{dir}"], &["cannot read", "it is a folder; name a file in it"]),
        (&["--config", "{dir}/binary.toml"], &["cannot read", "binary.toml: it is no text in UTF-8"]),
    ] {
        assert_helps(&refused_in(&dir, &[], arguments), pieces);
    }
    assert!(!dir.path("none").exists(), "no folder is made");
    // Both may read one file.
    let both = ["--disk", "a=file:{dir}/there.img,ro", "--disk", "b=file:{dir}/there.img,ro"];
    drop(Daemon::start_in(dir, &[], &both));
    assert_helps(&refused(&["--disk", "a=file:/dev/null"]), &["neither a regular file nor a block device"]);
}

#[test]
fn same_disk_and_same_sizes_written_otherwise_change_nothing_at_a_reload() {
    let dir = Scratch::new();
    let file = |limits: &str, disk: &str| {
        std::fs::write(dir.path("f.toml"), format!("{limits}\n[[disk]]\nname = \"a\"\n{disk}\n")).expect("a file");
    };
    file("max_pool_bytes = 67108864\nmax_memory_bytes = 17179869184", "spec = \"memory:1M,max=4M,exclusive\"");
    let daemon = Daemon::start_in(Scratch::existing(&dir.0), &[], &["--config", "{dir}/f.toml"]);
    let reloads = |count| {
        daemon.signal(Signal::HUP);
        eventually("the file is read again", || daemon.log().matches("reloaded").count() == count);
        daemon.log()
    };
    let keys = "kind = \"memory\"\nsize = 1048576\nmax = \"4M\"\nexclusive = true";
    file("max_pool_bytes = \"64M\"\nmax_memory_bytes = \"16G\"", keys);
    assert_says(&reloads(1), &["reloaded added=[] removed=[] changed=[]"]);
    file("max_pool_bytes = \"32M\"\nmax_memory_bytes = \"16G\"", keys);
    let log = reloads(2);
    assert_says(&log, &["changed=[\"max_pool_bytes\"]"]);
    assert!(!log.contains("needs a restart"), "{log}");
}
