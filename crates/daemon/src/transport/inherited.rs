//! Sockets and devices from a service manager (sd_listen_fds(3)), and the descriptor of `--ready-fd`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use crate::metrics::check_loopback;
use fipsee_serve::unix::listener::Listener;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

/// The name that distinguishes the admin socket from the client socket (`FileDescriptorName=`).
const ADMIN_NAME: &str = "admin";
/// Likewise that of scrapers.
const METRICS_NAME: &str = "metrics";
/// What the name of a device's descriptor begins with.
const DEVICE_PREFIX: &str = "tap-";

#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) client: Option<Listener>,
    pub(crate) admin: Option<Listener>,
    pub(crate) metrics: Option<Listener>,
    /// A descriptor for each queue of devices, by the names of these.
    pub(crate) devices: BTreeMap<String, Vec<OwnedFd>>,
    /// Where the start is awaited.
    pub(crate) ready: Option<OwnedFd>,
}

/// Descriptors up to this one are standard input, output and error.
const LAST_STANDARD: RawFd = 2;

/// Take the sockets that the environment names, and the descriptor `ready_fd`, and own them. Called once, at the start.
pub(crate) fn take(ready_fd: Option<RawFd>) -> Result<Inherited, String> {
    let passed = sd_notify::listen_fds_with_names()
        .map_err(|error| format!("the sockets of the service manager cannot be taken: LISTEN_FDS and LISTEN_FDNAMES: {error}"))?;
    let mut inherited = Inherited::default();
    for (fd, name) in passed {
        if Some(fd) == ready_fd {
            return Err(format!("--ready-fd {fd} is socket '{name}' of the service manager; use another descriptor"));
        }
        // SAFETY: the service manager passed this descriptor to this process, for it alone to own (sd_listen_fds has checked
        // LISTEN_PID and that the descriptor is open), and this runs once, when nothing else has been opened at its number.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        if let Some(device) = name.strip_prefix(DEVICE_PREFIX) {
            inherited.devices.entry(device.to_owned()).or_default().push(socket);
            continue;
        }
        let (listener, kind, setting) = match name.as_str() {
            ADMIN_NAME => (&mut inherited.admin, SocketType::STREAM, "ListenStream="),
            METRICS_NAME => (&mut inherited.metrics, SocketType::STREAM, "ListenStream="),
            _ => (&mut inherited.client, SocketType::SEQPACKET, "ListenSequentialPacket="),
        };
        if listener.is_some() {
            return Err(format!(
                "socket '{name}' is one too many: one for clients, one named '{ADMIN_NAME}' (FileDescriptorName={ADMIN_NAME}) and one named '{METRICS_NAME}' can be used; remove the others"
            ));
        }
        let path = address_of(&socket, kind, name == METRICS_NAME)
            .map_err(|problem| format!("socket '{name}' from the service manager {problem}; use {setting}/a/path in its unit"))?;
        // The main and the admin thread accept until no connection is left, and must not block then.
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|error| format!("socket '{name}' cannot be made non-blocking: {error}"))?;
        *listener = Some(Listener::handed_over(path, socket, None));
    }
    inherited.ready = ready_fd.map(take_ready).transpose()?;
    Ok(inherited)
}

fn take_ready(fd: RawFd) -> Result<OwnedFd, String> {
    let wrong =
        |what: &dyn std::fmt::Display| format!("--ready-fd {fd}: {what}; give a descriptor that is open for writing, from 3 on");
    if fd <= LAST_STANDARD {
        return Err(wrong(&"this is standard input, output or error"));
    }
    // SAFETY: the call takes any number, and fails if no descriptor has it; it touches no memory.
    let outcome = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    if outcome != 0 {
        return Err(wrong(&std::io::Error::last_os_error()));
    }
    // SAFETY: it is open, as was just seen, and the process that started this one passed it for this use alone; nothing that is
    // open by now was opened at its number, since this runs once, first, and it is none of the service manager's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The path of a listening Unix socket of this kind, or the address of one of TCP if that is possible; or what is wrong with it, in
/// words that follow its name.
fn address_of(socket: &impl AsFd, kind: SocketType, may_be_tcp: bool) -> Result<PathBuf, String> {
    let what = |error: rustix::io::Errno| format!("is no socket ({error})");
    let is_unix = match sockopt::socket_domain(socket).map_err(what)? {
        AddressFamily::UNIX => true,
        AddressFamily::INET | AddressFamily::INET6 if may_be_tcp => false,
        _ => return Err("is no Unix socket".to_owned()),
    };
    let found = sockopt::socket_type(socket).map_err(what)?;
    if found != kind {
        return Err(format!("is a {} socket and must be a {} socket", name_of(found), name_of(kind)));
    }
    if !sockopt::socket_acceptconn(socket).map_err(what)? {
        return Err("does not listen".to_owned());
    }
    let address = rustix::net::getsockname(socket).map_err(what)?;
    if !is_unix {
        let address = SocketAddr::try_from(address).map_err(what)?;
        return check_loopback(&address).map(|()| address.to_string().into());
    }
    let address = SocketAddrUnix::try_from(address).map_err(what)?;
    match address.path_bytes() {
        Some(path) => Ok(PathBuf::from(std::os::unix::ffi::OsStrExt::from_bytes(path) as &std::ffi::OsStr)),
        None => Err("has no path".to_owned()),
    }
}

const fn name_of(kind: SocketType) -> &'static str {
    match kind {
        SocketType::SEQPACKET => "SEQPACKET",
        SocketType::STREAM => "STREAM",
        SocketType::DGRAM => "DGRAM",
        _ => "raw",
    }
}
