//! `fipsee disk`: disks of a running daemon are listed, added, removed and set.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use fipsee_block::disk::{AnyDisk, DiskSpec, FileDisk};
use fipsee_daemon::admin::parse_disk;
use fipsee_daemon::config::{group_number, user_number};
use serde_json::{Value, json};

use crate::error::Error;
use crate::{admin, ls, output, units};

const MAX_16: u64 = u16::MAX as u64;
const MAX_32: u64 = u32::MAX as u64;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the daemon's disks, as fipsee ls
    Ls(ls::Arguments),
    /// Serve one more disk, until the daemon is restarted; a reload or a takeover leaves it
    Add(AddArguments),
    /// Serve a disk no longer; refused while a client is attached
    Remove(RemoveArguments),
    /// Change who may use a disk, and its limits, until the daemon is restarted; clients that are attached stay
    Set(SetArguments),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArguments {
    /// The disk, as for fipseed --disk, for example a=memory:256M or a=file:PATH,size=1G
    #[arg(value_name = "NAME=KIND:ARGS")]
    disk: String,
    /// The path of a file disk, if it has a comma; leave it empty in the disk then (a=file:,ro)
    #[arg(long)]
    path: Option<PathBuf>,
    /// Let this user attach, by name or number, beside root and the daemon's own; may be repeated
    #[arg(long, value_name = "NAME", visible_alias = "allow-uid", value_parser = user_number)]
    allow_user: Vec<u32>,
    /// Let this group, as primary or supplementary one, attach; may be repeated
    #[arg(long, value_name = "NAME", visible_alias = "allow-gid", value_parser = group_number)]
    allow_group: Vec<u32>,
    /// Let every user attach
    #[arg(long)]
    allow_everyone: bool,
    /// Clients and virtual machines attached at once
    #[arg(long, value_name = "N", value_parser = up_to::<MAX_32>)]
    max_clients: Option<u64>,
    /// Queues of one of them; at most the daemon's max_queues
    #[arg(long, value_name = "N", value_parser = up_to::<MAX_16>)]
    max_queues: Option<u64>,
    /// Requests outstanding per queue; at most the daemon's max_depth
    #[arg(long, value_name = "N", value_parser = up_to::<MAX_32>)]
    max_depth: Option<u64>,
    /// Serve it to virtual machines at this Unix socket; may be repeated
    #[arg(long, value_name = "PATH")]
    vhost_user: Vec<PathBuf>,
    /// Print JSON: the disk's description, as info does
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArguments {
    /// Name of the disk
    disk: String,
    /// Print JSON: the disk's last description, as info does
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetArguments {
    /// Name of the disk
    disk: String,
    /// The users that may attach, by name or number, beside root and the daemon's own, in place of those of now:
    /// --allow-user=alice,1001; without a list, none
    #[arg(
        long,
        value_name = "LIST",
        visible_alias = "allow-uids",
        value_delimiter = ',',
        num_args = 0..,
        require_equals = true,
        value_parser = user_number
    )]
    allow_user: Option<Vec<u32>>,
    /// The groups that may attach, likewise
    #[arg(
        long,
        value_name = "LIST",
        visible_alias = "allow-gids",
        value_delimiter = ',',
        num_args = 0..,
        require_equals = true,
        value_parser = group_number
    )]
    allow_group: Option<Vec<u32>>,
    /// May every user attach?
    #[arg(long, value_name = "BOOL")]
    allow_everyone: Option<bool>,
    /// May several clients write at a time, whatever they claim?
    #[arg(long, value_name = "BOOL")]
    shared: Option<bool>,
    /// Clients and virtual machines attached at once, or off; a lower limit ends none
    #[arg(long, value_name = "N", value_parser = limit::<MAX_32>)]
    max_clients: Option<Value>,
    /// Queues of one that attaches from now on, or off: the daemon's max_queues
    #[arg(long, value_name = "N", value_parser = limit::<MAX_16>)]
    max_queues: Option<Value>,
    /// Requests outstanding per queue of one that attaches from now on, or off: the daemon's max_depth
    #[arg(long, value_name = "N", value_parser = limit::<MAX_32>)]
    max_depth: Option<Value>,
    /// Is a worker, and its CPU, for this disk alone?
    #[arg(long, value_name = "BOOL")]
    dedicated: Option<bool>,
    /// Print JSON: the disk's new description, as info does
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(socket: &Path, command: &Command) -> Result<(), Error> {
    match command {
        Command::Ls(arguments) => ls::run(socket, arguments),
        Command::Add(arguments) => add(socket, arguments),
        Command::Remove(RemoveArguments { disk, json }) => {
            let answer = admin::ask(socket, "disk.remove", &json!({ "disk": disk }))?;
            show(*json, &answer, &format!("disk '{disk}' is served no more\n"))
        }
        Command::Set(arguments) => set(socket, arguments),
    }
}

fn add(socket: &Path, arguments: &AddArguments) -> Result<(), Error> {
    let AddArguments { disk, path, allow_user, allow_group, allow_everyone, vhost_user, json, .. } = arguments;
    let mut spec = parse_disk(disk, path.as_deref())?;
    let path = spec.kind.file().map(admin::absolute).transpose()?;
    if let (Some(options), Some(path)) = (spec.kind.file_mut(), &path) {
        options.path = path.into();
    }
    let sockets = vhost_user.iter().map(|path| admin::absolute(path)).collect::<Result<Vec<_>, _>>()?;
    let mut params = json!({
        "spec": disk,
        "path": path,
        "allow_uids": allow_user,
        "allow_gids": allow_group,
        "allow_everyone": allow_everyone,
        "max_clients": arguments.max_clients,
        "max_queues": arguments.max_queues,
        "max_depth": arguments.max_depth,
        "vhost_user": sockets,
    });
    let answer = match admin::exchange(socket, "disk.add", &params, &[])? {
        Ok(answer) => answer,
        Err(refusal) if refusal.wants_file => {
            // The daemon's reason may be its confinement alone, which this process does not have.
            let opened = Opened::new(&spec)?;
            params["file_passed"] = true.into();
            let answer = admin::exchange(socket, "disk.add", &params, opened.file().as_slice())?;
            answer.inspect_err(|_| opened.undo()).map_err(|refusal| refusal.message)?
        }
        Err(refusal) => return Err(refusal.message.into()),
    };
    let (name, size) = (&spec.name, units::bytes(admin::number(&answer, "size_bytes")));
    show(*json, &answer, &format!("disk '{name}' of {size} is served until the daemon is restarted\n"))
}

/// A disk whose file this process has opened, as the daemon would have, for the daemon.
struct Opened(AnyDisk);

impl Opened {
    fn new(spec: &DiskSpec) -> Result<Self, String> {
        spec.open().map(Self)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file_disk().map(FileDisk::file)
    }

    /// It is not served: a file that was made for it is removed.
    fn undo(&self) {
        if let Some(Err(problem)) = self.0.file_disk().map(FileDisk::remove_if_new) {
            eprintln!("{problem}");
        }
    }
}

fn set(socket: &Path, arguments: &SetArguments) -> Result<(), Error> {
    let SetArguments {
        disk,
        allow_user,
        allow_group,
        allow_everyone,
        shared,
        max_clients,
        max_queues,
        max_depth,
        dedicated,
        json,
    } = arguments;
    let params = json!({
        "disk": disk,
        "allow_uids": allow_user,
        "allow_gids": allow_group,
        "allow_everyone": allow_everyone,
        "shared": shared,
        "max_clients": max_clients,
        "max_queues": max_queues,
        "max_depth": max_depth,
        "dedicated": dedicated,
    });
    if params.as_object().is_some_and(|params| params.values().filter(|value| !value.is_null()).count() == 1) {
        let options = "--allow-user, --allow-group, --allow-everyone, --shared, --max-clients, --max-queues, --max-depth or \
                       --dedicated";
        return Err(format!("nothing to change; give {options}").into());
    }
    let answer = admin::ask(socket, "disk.set", &params)?;
    show(*json, &answer, &format!("disk '{disk}' is changed until the daemon is restarted\n"))
}

/// A number from 1 to this.
pub(crate) fn up_to<const MAX: u64>(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| match MAX {
        u64::MAX => "write an integer from 1, for example 4".to_owned(),
        _ => format!("write an integer from 1 to {MAX}"),
    })
}

/// A number, or that there is no limit.
pub(crate) fn limit<const MAX: u64>(text: &str) -> Result<Value, String> {
    if text == "off" {
        return Ok(text.into());
    }
    up_to::<MAX>(text).map(Value::from).map_err(|problem| format!("{problem}, or off"))
}

fn show(json: bool, answer: &Value, text: &str) -> Result<(), Error> {
    if json { output::print_json(answer) } else { output::print(text) }
}
