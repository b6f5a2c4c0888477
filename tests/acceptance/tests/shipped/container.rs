//! The container image: built by its recipe from our packages, and run as a node of a cluster runs it, without root inside.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use fipsee_acceptance::throwaway::packages;
use fipsee_acceptance::{DEADLINE, Guard, Scratch, has_program, run, shipped, skip, text_of};
use serde_json::{Value, json};

/// The user in the image, as packaging/container/build.sh has it.
const USER: u32 = 990;

#[test]
fn image_serves_clients_of_its_host_as_an_ordinary_user() {
    const WHAT: &str = "container";
    let packages = packages(WHAT, &["fipsee", "fipsee-daemon"]);
    let Some(fipsee) = shipped(WHAT, "bin/fipsee").filter(|_| packages.len() == 2) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(WHAT, "only root can run a container here");
    }
    if !["umoci", "runc", "apt-get", "dpkg-deb"].iter().all(|program| has_program(WHAT, program)) {
        return;
    }
    let directory = Scratch::new();
    build(packages[0].parent().expect("a folder"), &directory);
    let bundle = unpack(&directory);
    let root = bundle.join("rootfs");
    assert!(!root.join("bin/sh").exists() && !root.join("usr/bin/sh").exists(), "the image has a shell");
    for path in ["usr/share/doc/fipsee-daemon/copyright", "usr/share/doc/fipsee/THIRD-PARTY-NOTICES.gz"] {
        assert!(root.join(path).exists(), "no {path}");
    }
    let (run_folder, disks) = (directory.path("run"), directory.path("disks"));
    for folder in [&run_folder, &disks] {
        fs::create_dir(folder).expect("a fresh directory");
        chown(folder, Some(USER), Some(USER)).expect("root may");
    }
    let config = configure(&bundle, &run_folder, &disks);
    // As the image says, but for the arguments that follow its entry point.
    let process = &config["process"];
    assert_eq!((&process["user"]["uid"], &process["user"]["gid"]), (&json!(USER), &json!(USER)));
    assert_eq!(process["args"][0], "/usr/bin/fipseed");
    let container = Container::start(&bundle, &directory);
    let connect = format!("--connect={}", run_folder.join("fipsee.sock").display());
    let client = |arguments: &[&str]| run(Command::new(&fipsee).arg(&connect).args(arguments));
    container.await_disk(&fipsee, &connect);
    let image = directory.file("image", vec![0x5a; 1 << 20]);
    client(&["cp", "--no-progress", "--verify", image.to_str().expect("an ordinary path"), "fip:data"]);
    assert!(client(&["bench", "data", "--seconds", "0.2"]).contains("p50"));
    // The client in the image, which finds the socket by itself.
    let listed = run(container.runc("exec").args([&container.name, "/usr/bin/fipsee", "ls"]));
    assert!(listed.lines().any(|line| line.starts_with("data ")), "{listed}");
    let state: Value = serde_json::from_str(&run(container.runc("state").arg(&container.name))).expect("JSON");
    let status = fs::read_to_string(format!("/proc/{}/status", state["pid"])).expect("its process");
    assert!(
        status.contains(&format!("\nUid:\t{USER}\t{USER}\t{USER}\t{USER}\n")) && status.contains("\nNoNewPrivs:\t1\n"),
        "{status}"
    );
    container.end();
    let kept = fs::read(disks.join("data.img")).expect("the disk's file");
    assert!(kept.len() == 16 << 20 && kept[..1 << 20].iter().all(|byte| *byte == 0x5a), "the disk is in the folder of the host");
}

fn build(packages: &Path, directory: &Scratch) {
    // Kept for the next time, as the throwaway system is.
    let cache = packages.join("../container-packages");
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/container/build.sh");
    let image = directory.path("image.tar");
    run(Command::new(recipe).arg(packages).arg(&image).arg(cache));
    let layout = directory.path("layout");
    fs::create_dir(&layout).expect("a fresh directory");
    run(Command::new("tar").arg("--extract").arg("--file").arg(image).arg("--directory").arg(layout));
}

fn unpack(directory: &Scratch) -> std::path::PathBuf {
    let bundle = directory.path("bundle");
    run(Command::new("umoci")
        .arg("unpack")
        .arg("--image")
        .arg(format!("{}:latest", directory.path("layout").display()))
        .arg(&bundle));
    bundle
}

/// What a node of a cluster adds to what the image says: folders of the host, arguments, no terminal.
fn configure(bundle: &Path, run_folder: &Path, disks: &Path) -> Value {
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a bundle")).expect("JSON");
    config["process"]["terminal"] = json!(false);
    let entry = config["process"]["args"][0].clone();
    let arguments = ["--listen=/run/fipsee/fipsee.sock", "--disk=data=file:/var/lib/fipsee/data.img,size=16M", "--wait=sleep"];
    config["process"]["args"] = [entry].into_iter().chain(arguments.map(Value::from)).collect();
    // Volumes of the image are folders of the host instead; groups of processes are the host's, which may not be ours to change.
    let mounts = config["mounts"].as_array_mut().expect("mounts");
    let is_replaced = |mount: &Value| {
        mount["type"] == "cgroup" || ["/run/fipsee", "/var/lib/fipsee"].iter().any(|place| mount["destination"] == *place)
    };
    mounts.retain(|mount| !is_replaced(mount));
    for (source, place) in [(run_folder, "/run/fipsee"), (disks, "/var/lib/fipsee")] {
        mounts.push(json!({ "type": "bind", "source": source, "destination": place, "options": ["rbind", "rw"] }));
    }
    config["linux"]["resources"] = json!({});
    fs::write(&path, config.to_string()).expect("the bundle is ours");
    config
}

struct Container {
    name: String,
    state: std::path::PathBuf,
    log: std::path::PathBuf,
    /// Waits for the container's end, as its parent.
    process: Guard,
}

impl Container {
    fn start(bundle: &Path, directory: &Scratch) -> Self {
        let (name, state, log) = (format!("fipsee-{}", std::process::id()), directory.path("state"), directory.path("log"));
        let file = File::create(&log).expect("a file");
        let mut command = runc(&state, "run");
        command.arg("--bundle").arg(bundle).arg(&name).stdin(Stdio::null());
        command.stdout(file.try_clone().expect("a descriptor")).stderr(file);
        let process = Guard(command.spawn().expect("runc can be run"));
        Self { name, state, log, process }
    }

    fn runc(&self, what: &str) -> Command {
        runc(&self.state, what)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn await_disk(&self, fipsee: &Path, connect: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let output = Command::new(fipsee).arg(connect).args(["info", "data"]).output().expect("fipsee can be run");
            if output.status.success() {
                return;
            }
            assert!(Instant::now() < deadline, "{}\n{}", text_of(&output), self.log());
            // tidy: allow sleep, a daemon in a container notifies no process outside
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn end(mut self) {
        run(self.runc("kill").args([self.name.as_str(), "TERM"]));
        let status = self.process.0.wait().expect("a child");
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // After a test that failed; else it is gone.
        let _ = self.runc("delete").args(["--force", self.name.as_str()]).output();
    }
}

fn runc(state: &Path, what: &str) -> Command {
    let mut command = Command::new("runc");
    command.arg("--root").arg(state).arg(what);
    command
}
