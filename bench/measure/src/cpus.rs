//! Which CPU does what: the client on the first, the server on the last.

use fipsee_topology::pin;

/// The two CPUs of a measurement; the same one twice on a machine that has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    pub client: usize,
    pub server: usize,
}

impl Cpus {
    /// The daemon binds its workers from the last one down.
    pub fn choose() -> Self {
        let allowed = pin::allowed().unwrap_or_default();
        let client = allowed.first().copied().unwrap_or(0);
        Self { client, server: allowed.last().copied().unwrap_or(client) }
    }

    /// Client and server; `None` if they are one.
    pub fn pair(self) -> Option<[usize; 2]> {
        (self.client != self.server).then_some([self.client, self.server])
    }
}
