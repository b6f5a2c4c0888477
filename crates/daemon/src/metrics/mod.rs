//! The metrics endpoint: GET /metrics for Prometheus, at Unix sockets and TCP addresses of this host (docs/guide/monitoring.md).
//!
//! Without access control of its own: a Unix socket has a mode, and a TCP address must be one of this host's loopback.

mod families;
mod http;
mod networks;
mod server;
mod text;

use std::fmt::{Display, Formatter};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fipsee_serve::unix::listener::Listener;
use rustix::net::SocketType;

pub(crate) use self::families::Sources;
pub(crate) use self::server::spawn;
use crate::config::make_usual_folder;

const EXAMPLES: &str =
    "write a path, for example /run/fipsee/metrics.sock, or an address of this host, for example 127.0.0.1:9760";

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Endpoint {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// `--metrics`, and an item of `metrics`.
pub(crate) fn parse(text: &str) -> Result<Endpoint, String> {
    if text.contains('/') {
        return Ok(Endpoint::Unix(text.into()));
    }
    let by_name = || Some(SocketAddr::from((Ipv4Addr::LOCALHOST, text.strip_prefix("localhost:")?.parse().ok()?)));
    let address = text.parse().ok().or_else(by_name);
    let address = address.ok_or_else(|| format!("'{text}' is neither a path with a '/' nor IP:PORT; {EXAMPLES}"))?;
    check_loopback(&address).map(|()| Endpoint::Tcp(address)).map_err(|problem| format!("{address} {problem}"))
}

/// In words that follow the address.
pub(crate) fn check_loopback(address: &SocketAddr) -> Result<(), String> {
    match address.ip().is_loopback() {
        true => Ok(()),
        false => Err(format!("can be reached from other hosts, and metrics have no access control; {EXAMPLES}, behind a proxy")),
    }
}

/// A listening socket for scrapers.
#[derive(Debug)]
pub(crate) struct MetricsListener {
    /// The path of one for TCP is its address.
    pub(crate) listener: Listener,
    /// By the service manager, whatever the configuration has.
    pub(crate) is_passed: bool,
}

impl MetricsListener {
    pub(crate) fn bind(endpoint: &Endpoint) -> Result<Self, String> {
        let listener = match endpoint {
            Endpoint::Unix(path) => {
                let bound = make_usual_folder(path).and_then(|()| Listener::bind(path, SocketType::STREAM, 0o660));
                bound.map_err(|text| format!("metrics: {text} (--metrics, metrics)"))?
            }
            Endpoint::Tcp(address) => {
                let (address, socket) = bind_tcp(*address).map_err(|error| {
                    format!("metrics: cannot listen at {address}: {error}; choose another port (--metrics, metrics; ss -ltnp lists those in use)")
                })?;
                Listener::handed_over(address.to_string().into(), socket, None)
            }
        };
        Ok(Self { listener, is_passed: false })
    }

    fn is_at(&self, endpoint: &Endpoint) -> bool {
        self.listener.path() == Path::new(&endpoint.to_string())
    }
}

/// The address as well: port 0 has the kernel choose one.
fn bind_tcp(address: SocketAddr) -> std::io::Result<(SocketAddr, OwnedFd)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok((listener.local_addr()?, listener.into()))
}

/// Listen wherever the configuration says, of sockets that are `given` with those; and at those that were passed. Also returned: the
/// sockets that are given and not wanted.
pub(crate) fn listen(
    endpoints: &[Endpoint],
    mut given: Vec<MetricsListener>,
) -> Result<(Vec<MetricsListener>, Vec<MetricsListener>), String> {
    let mut listeners = Vec::new();
    for endpoint in endpoints {
        let found = given.iter().position(|given| given.is_at(endpoint));
        listeners.push(found.map_or_else(|| MetricsListener::bind(endpoint), |index| Ok(given.swap_remove(index)))?);
    }
    let (passed, unwanted): (Vec<_>, _) = given.into_iter().partition(|given| given.is_passed);
    listeners.extend(passed);
    Ok((listeners, unwanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_paths_and_addresses_of_this_host() {
        assert_eq!(parse("/run/m.sock"), Ok(Endpoint::Unix("/run/m.sock".into())));
        assert_eq!(parse("./m"), Ok(Endpoint::Unix("./m".into())));
        for (text, address) in [("127.0.0.1:1", "127.0.0.1:1"), ("[::1]:9760", "[::1]:9760"), ("localhost:9", "127.0.0.1:9")] {
            assert_eq!(parse(text), Ok(Endpoint::Tcp(address.parse().expect("an address"))), "{text}");
        }
        for text in ["0.0.0.0:9760", "[::]:9760", "192.0.2.1:80"] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains("from other hosts") && refused.contains("127.0.0.1:9760"), "{refused}");
        }
        for text in ["", "9760", "localhost", "localhost:x", "example.org:80", "m.sock"] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains("neither a path") && refused.contains("/run/fipsee/metrics.sock"), "{refused}");
        }
    }

    #[test]
    fn given_sockets_are_used_where_they_are_wanted() {
        let given = || {
            let listener = MetricsListener::bind(&parse("127.0.0.1:0").expect("an address")).expect("a free port");
            let endpoint = parse(&listener.listener.path().to_string_lossy()).expect("an address");
            (endpoint, listener)
        };
        let ((wanted, one), (_, two), (_, three)) = (given(), given(), given());
        let passed = MetricsListener { is_passed: true, ..two };
        let (passed_at, unwanted_at) = (passed.listener.path().to_owned(), three.listener.path().to_owned());
        let (used, unwanted) = listen(std::slice::from_ref(&wanted), vec![three, passed, one]).expect("no bind is needed");
        let paths = |listeners: &[MetricsListener]| listeners.iter().map(|l| l.listener.path().to_owned()).collect::<Vec<_>>();
        assert_eq!(paths(&used), [PathBuf::from(wanted.to_string()), passed_at]);
        assert_eq!(paths(&unwanted), [unwanted_at]);
        let taken = listen(&[wanted], Vec::new()).expect_err("it is in use");
        assert!(taken.contains("choose another port (--metrics, metrics; "), "{taken}");
    }
}
