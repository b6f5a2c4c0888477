//! Loops: two ports whose clients are connected to each other elsewhere, so that frames come back.

/// So many addresses that come back within a second are a loop. A station that moves is back once or twice.
const MOST_BACK: u32 = 50;
const SECOND_NS: u64 = 1_000_000_000;
/// For so long a port is blocked.
const BLOCKED_NS: u64 = 10 * SECOND_NS;

#[derive(Debug, Default)]
pub(super) struct Loops {
    /// Since when addresses that came back are counted, and how many.
    since_ns: u64,
    count: u32,
    pub(super) blocked_until_ns: Option<u64>,
}

impl Loops {
    /// An address came back to the port. `true`: one too many, and the port is blocked.
    pub(super) fn is_one(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            (self.since_ns, self.count) = (now_ns, 0);
        }
        self.count += 1;
        if self.count <= MOST_BACK {
            return false;
        }
        self.count = 0;
        self.blocked_until_ns = Some(now_ns + BLOCKED_NS);
        true
    }
}
