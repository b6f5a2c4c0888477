//! The back end of a guest: our daemon, or QEMU's storage daemon to compare with.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::machine::Group;
use super::scenario::Event;
use super::unready::Unready;
use crate::dist::DIST_VARIABLE;
use crate::setup::is_installed;
use crate::{step, target, test};

/// A process that has not opened its sockets after this long never will.
const START_LIMIT: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_millis(20);
/// Of a guest's file system at least: where a file begins, so does one of these.
const BLOCK_BYTES: usize = 1024;

/// Of a disk in memory.
const FURTHER_BYTES: u64 = 16 << 20;

/// The disk, in a scenario's folder.
pub(super) const IMAGE: &str = "disk.img";

/// An implementation of vhost-user-blk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// `fipseed`, from the folder that holds it and `fipsee`.
    Fipseed(PathBuf),
    /// `qemu-storage-daemon`.
    StorageDaemon,
}

/// Names of peers as on the command line.
pub(super) const PEERS: [&str; 2] = ["fipseed", "qemu-storage-daemon"];

impl Peer {
    /// The peer of that name, if this machine has it; `programs` is the folder of ours if they are built already.
    pub(super) fn find(name: &str, root: &Path, programs: Option<&Path>) -> Result<Self, Unready> {
        if name == PEERS[1] {
            let is_here = is_installed(name);
            return if is_here { Ok(Self::StorageDaemon) } else { Err(missing(name)) };
        }
        let folder = match programs {
            Some(folder) => folder.to_owned(),
            None => build(root)?,
        };
        let help = step::output(Command::new(folder.join("fipseed")).arg("--help"));
        if !help.text.contains("--vhost-user") {
            return Err(Unready::Missing("this fipseed has no option --vhost-user".to_owned()));
        }
        Ok(Self::Fipseed(folder))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Fipseed(_) => PEERS[0],
            Self::StorageDaemon => PEERS[1],
        }
    }

    /// Why a scenario with that event says nothing of this peer.
    pub(super) fn cannot(&self, event: Event) -> Option<&'static str> {
        match (self, event) {
            (Self::StorageDaemon, Event::Handover) => Some("it cannot be taken over from"),
            (Self::StorageDaemon, Event::KillMachine) => Some("it does not report when it has let go of a machine"),
            (Self::StorageDaemon, Event::Restart | Event::Kill) => Some("it forgets what was under way when it is killed"),
            (Self::StorageDaemon, Event::Resize(_)) => Some("7.2 does not notify the guest"),
            _ => None,
        }
    }
}

fn missing(program: &str) -> Unready {
    Unready::Missing(format!("{program} is not installed; run `cargo xtask setup` as root"))
}

/// Our programs with checks of arithmetic and assertions, unless the environment names shipped ones.
fn build(root: &Path) -> Result<PathBuf, Unready> {
    if let Some(prefix) = std::env::var_os(DIST_VARIABLE) {
        return Ok(root.join(prefix).join("bin"));
    }
    step::succeed(test::programs(root).arg("--quiet"))?;
    Ok(target(root).join("debug"))
}

/// A disk to serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) bytes: u64,
    pub(super) read_only: bool,
    pub(super) content: Content,
    /// So many further disks, in memory.
    pub(super) further: u16,
}

/// What is on a disk when a guest starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    /// A file system with files, made by the host.
    Files,
    /// What [`System`](super::system::System) has put into the image.
    System,
}

/// A peer that serves.
pub(super) struct BackEnd {
    peer: Peer,
    folder: PathBuf,
    disk: Disk,
    queues: u16,
    cpu: Option<usize>,
    process: Option<Group>,
}

impl BackEnd {
    /// Make the disk in `folder` and serve it.
    pub(super) fn start(peer: &Peer, folder: &Path, disk: Disk, queues: u16, cpu: Option<usize>) -> Result<Self, String> {
        let mut back_end = Self { peer: peer.clone(), folder: folder.to_owned(), disk, queues, cpu, process: None };
        if disk.content != Content::System {
            let image = File::create_new(back_end.image()).and_then(|image| image.set_len(disk.bytes));
            image.map_err(|error| format!("cannot create {}: {error}", back_end.image().display()))?;
        }
        if disk.content == Content::Files {
            fill_with_files(folder, &back_end.image())?;
        }
        back_end.launch()?;
        Ok(back_end)
    }

    pub(super) fn image(&self) -> PathBuf {
        self.folder.join(IMAGE)
    }

    /// Where a guest finds the disk.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("disk.sock")
    }

    /// Where it finds the further ones.
    pub(super) fn further_sockets(&self) -> Vec<PathBuf> {
        (1..=self.disk.further).map(|number| self.folder.join(format!("disk{number}.sock"))).collect()
    }

    /// Its process.
    pub(super) fn id(&self) -> Result<u32, String> {
        self.process.as_ref().map(Group::id).ok_or_else(|| format!("{} does not run", self.peer.name()))
    }

    pub(super) fn launch(&mut self) -> Result<(), String> {
        let _ = fs::remove_file(self.socket());
        let mut command = self.command();
        let (output, errors) = self.open_log()?;
        let mut process = Group::spawn(command.stdin(std::process::Stdio::null()).stdout(output).stderr(errors))?;
        for socket in [self.socket()].iter().chain(&self.further_sockets()) {
            await_socket(socket, &mut process).map_err(|error| format!("{}: {error}:\n{}", self.peer.name(), self.log()))?;
        }
        self.process = Some(process);
        Ok(())
    }

    fn command(&self) -> Command {
        let (image, socket) = (self.image().display().to_string(), self.socket().display().to_string());
        let (folder, read_only) = (self.folder.display(), self.disk.read_only);
        match &self.peer {
            Peer::Fipseed(programs) => {
                let mut command = Command::new(programs.join("fipseed"));
                let end = if read_only { ",ro" } else { "" };
                command.arg("--listen").arg(self.folder.join("fipsee.sock"));
                command.arg("--disk").arg(format!("disk0=file:{image}{end}"));
                command.arg("--vhost-user").arg(format!("disk0={socket}"));
                for (socket, number) in self.further_sockets().iter().zip(1..) {
                    command.arg("--disk").arg(format!("disk{number}=memory:{FURTHER_BYTES}"));
                    command.arg("--vhost-user").arg(format!("disk{number}={}", socket.display()));
                }
                command.args(self.cpu.map(|cpu| format!("--cpus={cpu}")));
                command
            }
            Peer::StorageDaemon => {
                let mut command = pinned(self.cpu, Path::new("qemu-storage-daemon"));
                let (switch, writable) = if read_only { ("on", "off") } else { ("off", "on") };
                command.arg("--blockdev");
                command.arg(format!("driver=file,filename={image},node-name=file0,discard=unmap,read-only={switch}"));
                command.arg("--blockdev");
                command.arg(format!("driver=raw,file=file0,node-name=disk0,discard=unmap,read-only={switch}"));
                command.arg("--chardev").arg(format!("socket,id=monitor0,path={folder}/monitor.sock,server=on,wait=off"));
                command.args(["--monitor", "chardev=monitor0", "--export"]);
                command.arg(format!(
                    "type=vhost-user-blk,id=export0,node-name=disk0,addr.type=unix,addr.path={socket},writable={writable},\
                     num-queues={}",
                    self.queues
                ));
                command
            }
        }
    }

    /// Let the disk grow or shrink.
    pub(super) fn resize(&self, bytes: u64) -> Result<(), String> {
        match &self.peer {
            Peer::Fipseed(programs) => {
                let mut command = Command::new(programs.join("fipsee"));
                command.arg("--connect").arg(self.folder.join("fipsee.sock"));
                step::succeed(command.args(["resize", "disk0", &bytes.to_string()])).map(drop)
            }
            Peer::StorageDaemon => {
                let request = format!(r#"{{"execute":"block_resize","arguments":{{"node-name":"disk0","size":{bytes}}}}}"#);
                ask_monitor(&self.folder.join("monitor.sock"), &request, None)
            }
        }
    }

    /// Kill it, and wait for its end.
    pub(super) fn kill(&mut self) {
        // Killed and waited for as the group goes.
        drop(self.process.take());
    }

    /// Kill it and start it again.
    pub(super) fn restart(&mut self) -> Result<(), String> {
        self.kill();
        self.launch()
    }

    /// Wait until nothing of `machines` machines is left: it logs that for each.
    pub(super) fn await_release(&self, machines: usize) -> Result<(), String> {
        const RELEASED: &str = "a hypervisor is gone; everything of it is released";
        let is_released = || self.log().matches(RELEASED).count() >= machines;
        let released = ask_until(|| is_released().then_some(()));
        released.ok_or_else(|| format!("{} does not let go of a machine that was killed", self.peer.name()))
    }

    /// A new one takes over; the old one ends in order by itself.
    pub(super) fn hand_over(&mut self) -> Result<(), String> {
        let mut old = self.process.take().ok_or_else(|| format!("{} does not run", self.peer.name()))?;
        let mut command = self.command();
        command.arg("--takeover").stdin(std::process::Stdio::null());
        let (output, errors) = self.open_log()?;
        let mut new = Group::spawn(command.stdout(output).stderr(errors))?;
        let ended = ask_until(|| match (old.ended(), new.ended()) {
            (Some(status), _) => Some(Ok(status)),
            (None, refused) => refused.map(Err),
        });
        let status = match ended {
            Some(Ok(status)) => status,
            Some(Err(status)) => {
                self.process = Some(old);
                return Err(format!("the takeover was refused ({status}):\n{}", self.log()));
            }
            None => return Err(format!("there was no takeover in time:\n{}", self.log())),
        };
        self.process = Some(new);
        if status.success() { Ok(()) } else { Err(format!("the old daemon ended with {status}:\n{}", self.log())) }
    }

    fn open_log(&self) -> Result<(File, File), String> {
        let log = File::options().create(true).append(true).open(self.folder.join("back-end.log"));
        let log = log.and_then(|log| Ok((log.try_clone()?, log)));
        log.map_err(|error| format!("cannot write a log in {}: {error}", self.folder.display()))
    }

    /// Change a byte of what the disk holds: the first of a file that begins with these words.
    pub(super) fn spoil(&self, words: &[u8]) -> Result<(), String> {
        let path = self.image();
        let spoil = || -> std::io::Result<()> {
            let bytes = fs::read(&path)?;
            let block = bytes.chunks(BLOCK_BYTES).position(|block| block.starts_with(words));
            let place = block.ok_or_else(|| std::io::Error::other("nothing on the disk is to be spoilt"))? * BLOCK_BYTES;
            File::options().write(true).open(&path)?.write_all_at(&[!bytes[place]], place as u64)
        };
        spoil().map_err(|error| format!("cannot spoil {}: {error}", path.display()))
    }

    /// Stop and continue.
    pub(super) fn signal(&self, signal: &str) -> Result<(), String> {
        self.process.as_ref().map(|process| process.signal(signal)).ok_or_else(|| format!("{} does not run", self.peer.name()))
    }

    /// It must run until the guest has ended, whatever the guest did.
    pub(super) fn finish(mut self) -> Result<(), String> {
        match self.process.as_mut().and_then(Group::ended) {
            Some(status) => Err(format!("{} ended with {status} while the guest ran:\n{}", self.peer.name(), self.log())),
            None => Ok(()),
        }
    }

    /// Its log.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("back-end.log")).unwrap_or_default()
    }
}

/// Run `program` on that CPU.
pub(super) fn pinned(cpu: Option<usize>, program: &Path) -> Command {
    let Some(cpu) = cpu else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string()]).arg(program);
    command
}

/// Ask again and again until there is an answer; none in time is none.
pub(super) fn ask_until<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() > deadline {
            return answer;
        }
        // tidy: allow sleep, what another program does cannot be waited for
        thread::sleep(LOOK);
    }
}

/// Wait until a process listens there.
pub(super) fn await_socket(socket: &Path, process: &mut Group) -> Result<(), String> {
    let listens = ask_until(|| match process.ended() {
        Some(status) => Some(Err(format!("it ended with {status}"))),
        None => is_listening(socket).then_some(Ok(())),
    });
    listens.unwrap_or_else(|| Err(format!("it opens no socket {}", socket.display())))
}

/// Does a process accept connections there? To connect and see would use up the one connection a back end takes.
pub(super) fn is_listening(socket: &Path) -> bool {
    /// `__SO_ACCEPTCON`
    const ACCEPTS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let path = socket.display().to_string();
    sockets.lines().any(|line| line.ends_with(&path) && line.split_whitespace().nth(3) == Some(ACCEPTS))
}

/// Have QEMU's monitor do something, and wait for the `event` that says it is done.
pub(super) fn ask_monitor(socket: &Path, request: &str, event: Option<&str>) -> Result<(), String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(START_LIMIT))?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        // Its greeting and other events come between the answers.
        let mut wait = |words: &[&str]| {
            let found = lines.by_ref().map_while(Result::ok).find(|line| words.iter().any(|word| line.contains(word)));
            found.ok_or_else(|| std::io::Error::other(format!("it says nothing of {}", words.join(" or "))))
        };
        for request in [r#"{"execute":"qmp_capabilities"}"#, request] {
            stream.write_all(format!("{request}\n").as_bytes())?;
            let answer = wait(&[r#""return""#, r#""error""#])?;
            if answer.contains(r#""error""#) {
                return Ok(answer);
            }
        }
        event.map_or(Ok(()), |event| wait(&[event]).map(drop))?;
        Ok(String::new())
    };
    match ask() {
        Ok(answer) if answer.is_empty() => Ok(()),
        Ok(answer) => Err(format!("{request} gives {answer}")),
        Err(error) => Err(format!("cannot ask {}: {error}", socket.display())),
    }
}

/// A file system with `files/*` and their checksums in `sums`.
fn fill_with_files(folder: &Path, image: &Path) -> Result<(), String> {
    let tree = folder.join("tree");
    let files = tree.join("files");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&files)?;
        for number in 0..32_usize {
            let byte = |at: usize| ((at * 31 + number * 7) ^ (at >> 8)).to_le_bytes()[0];
            let bytes: Vec<u8> = (0..number * number * 997).map(byte).collect();
            fs::write(files.join(format!("file-{number}")), bytes)?;
        }
        Ok(())
    };
    write().map_err(|error| format!("cannot write files below {}: {error}", tree.display()))?;
    step::succeed(Command::new("sh").current_dir(&files).args(["-c", "md5sum file-* > ../sums"]))?;
    let mut command = Command::new("mke2fs");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .args(["-q", "-F", "-t", "ext4", "-L", "files", "-d"])
        .arg(&tree)
        .arg(image);
    step::succeed(&mut command).map(drop)
}
