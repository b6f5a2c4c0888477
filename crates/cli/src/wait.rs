//! `fipsee wait [DISK]`: until the daemon answers, and serves the disk. As an ordinary client, without the admin socket.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_block::client::{self, default_socket_path};

use crate::error::Error;
use crate::units;

/// Interval of attempts.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Until this disk is served, too, to this user
    disk: Option<String>,
    /// Give up after so many seconds, with exit status 1; 0: try once
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = units::parse_timeout)]
    timeout: Duration,
}

/// `connect`: the socket that was given.
pub(crate) fn run(connect: Option<&Path>, arguments: &Arguments) -> Result<(), Error> {
    let Arguments { disk, timeout } = arguments;
    let deadline = Instant::now() + *timeout;
    loop {
        // The user's own daemon may come while this waits.
        let socket = connect.map_or_else(default_socket_path, Path::to_owned);
        let Err(error) = is_served(&socket, disk.as_deref()) else { return Ok(()) };
        if Instant::now() >= deadline {
            let what =
                disk.as_ref().map_or_else(|| "no daemon answers".to_owned(), |disk| format!("disk '{disk}' is not served"));
            return Err(Error::at(format!("{what} after {} s", timeout.as_secs_f64()), error));
        }
        // tidy: allow sleep, nothing notifies when a daemon listens
        std::thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
    }
}

fn is_served(socket: &Path, disk: Option<&str>) -> Result<(), Error> {
    let disks = client::list(socket)?;
    match disk.filter(|name| disks.iter().all(|listed| listed.name != *name)) {
        Some(name) => Err(format!("no disk '{name}' that this user may use; `fipsee ls` lists those").into()),
        None => Ok(()),
    }
}
