//! A refused start, reload or takeover leaves every folder as it was. Files and sockets that were made on the way are removed, and
//! existing ones stay.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says, refused_in};
use serde_json::{Value, json};

/// Everything below a folder but the log and the configuration: identity and length of each file.
fn everything_below(folder: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, metadata) = (entry.path(), entry.metadata().expect("it stays"));
        if metadata.is_dir() {
            found.extend(everything_below(&path));
        }
        if !["log", "f.toml"].iter().any(|name| path.ends_with(name)) {
            let length = if metadata.is_file() { metadata.len() } else { 0 };
            found.insert(path, (metadata.ino(), length));
        }
    }
    found
}

/// Files that must not be changed, and names that do not exist.
fn prepare(dir: &Scratch) {
    std::fs::write(dir.path("old.img"), vec![7; 1 << 20]).expect("a file");
    std::fs::write(dir.path("empty.img"), "").expect("a file");
    std::fs::write(dir.path("no-socket"), "precious").expect("a file");
    std::os::unix::fs::symlink(".", dir.path("same")).expect("a link");
}

fn disk(name: &str, spec: &str) -> String {
    format!("[[disk]]\nname = \"{name}\"\nspec = \"{spec}\"\n")
}

/// New disks, the last of which cannot be opened, and parts of the error.
fn refused() -> Vec<(String, [&'static str; 2])> {
    let new = disk("c", "file:{dir}/new.img,size=1M") + &disk("d", "error:every=3:file:{dir}/other.img,size=1M");
    let old = disk("e", "file:{dir}/old.img,size=1M");
    let at = |path: &str| format!("vhost_user = \"{{dir}}/{path}\"\n");
    vec![
        // The last disk fails.
        (format!("{new}{old}{}", disk("x", "file:{dir}/none")), ["disk 'x'", "does not exist"]),
        (format!("{new}{old}{}", disk("x", "file:{dir}/empty.img,size=1M")), ["disk 'x'", "less than size="]),
        (format!("{new}{}", disk("x", "file:{dir}/same/new.img,size=1M")), ["disk 'x'", "is in use"]),
        // The socket of the last disk fails, after one that could be made.
        (format!("{new}{}{old}{}", at("vm"), at("no-socket")), ["disk 'e'", "exists and is not a socket"]),
        (format!("{new}{}{old}{}", at("vm"), at("s")), ["disk 'e'", "another server already listens"]),
        (format!("{new}{}{old}{}", at("vm"), at("no-socket/vm")), ["disk 'e'", "no-socket is not a folder"]),
        // It makes no folder.
        (format!("{new}{}{old}{}", at("vm"), at("f/g/vm")), ["disk 'e'", "f/g does not exist; make it (mkdir -p "]),
    ]
}

fn reload(daemon: &Daemon, text: &str) -> Value {
    daemon.dir.configure(text);
    daemon.admin(&json!({ "method": "reload" }))
}

#[test]
fn refused_reload_leaves_nothing_behind_and_is_refused_the_same_way_again() {
    for confine in ["off", "best-effort"] {
        let dir = Scratch::new();
        prepare(&dir);
        let head = format!("confine = \"{confine}\"\nconfine_paths = [\"{{dir}}\"]\n{}", disk("a", "memory:1M"));
        dir.configure(&head);
        let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
        let mut correct_client = CorrectClient::new(&daemon, "a");
        let before = everything_below(&daemon.dir.0);
        for (text, pieces) in refused() {
            for _ in 0..2 {
                let answer = reload(&daemon, &format!("{head}{text}"));
                assert_says(answer["error"].as_str().unwrap_or_else(|| panic!("{text} was taken: {answer}")), &pieces);
                assert_eq!(everything_below(&daemon.dir.0), before, "{text}");
            }
        }
        // A disk in use stays, and the new one is not added.
        let answer = reload(&daemon, &disk("c", "file:{dir}/new.img,size=1M"));
        assert_says(answer["error"].as_str().expect("an error"), &["disk 'a'", "in use by process"]);
        assert_eq!(everything_below(&daemon.dir.0), before);
        correct_client.check();
        let answer = reload(&daemon, &format!("{head}{}", disk("c", "file:{dir}/new.img,size=1M")));
        assert_eq!(answer["added"], json!(["c"]), "{answer}");
        assert_eq!(std::fs::metadata(daemon.dir.path("new.img")).expect("a file").len(), 1 << 20);
        // The disk is served, so it stays whatever is refused now.
        let answer = reload(&daemon, &format!("{head}{}", disk("x", "file:{dir}/none")));
        assert!(answer["error"].is_string(), "{answer}");
        CorrectClient::new(&daemon, "c").check();
    }
}

#[test]
fn refused_start_leaves_nothing_behind() {
    let dir = Scratch::new();
    prepare(&dir);
    let before = everything_below(&dir.0);
    for (text, pieces) in refused() {
        dir.configure(&text);
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml"]), &pieces);
        assert_eq!(everything_below(&dir.0), before, "{text}");
    }
}

#[test]
fn refused_start_leaves_nothing_in_a_shared_folder() {
    let path = std::env::temp_dir().join(format!("fipseed-{}.img", std::process::id()));
    let dir = Scratch::new();
    prepare(&dir);
    let spec = format!("a=file:{},size=1M", path.display());
    let text = refused_in(&dir, &[], &["--disk", &spec, "--vhost-user", "a={dir}/no-socket"]);
    let stayed = std::fs::remove_file(&path);
    assert_says(&text, &["disk 'a'", "exists and is not a socket"]);
    assert_eq!(stayed.expect_err("the folder is gone").kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn refused_takeover_leaves_nothing_behind() {
    let dir = Scratch::new();
    prepare(&dir);
    let daemon = Daemon::start_in(dir, &[], &["--disk", "a=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let before = everything_below(&daemon.dir.0);
    let mut daemon = daemon;
    let new = "c=file:{dir}/new.img,size=1M";
    for more in [["--disk", new, "--disk", "x=file:{dir}/none"], ["--disk", new, "--vhost-user", "c={dir}/vm"]] {
        daemon.try_take_over(&more).expect_err("refused");
        assert_eq!(everything_below(&daemon.dir.0), before, "{more:?}");
        correct_client.check();
    }
    daemon.try_take_over(&["--disk", new]).expect("a takeover");
    CorrectClient::new(&daemon, "c").check();
    assert!(daemon.dir.path("new.img").exists());
}
