//! The mechanisms, one file each or one for a family. Each says how it is used, and that this is how its own documentation
//! uses it for the least latency.

#[cfg(feature = "aeron")]
mod aeron;
#[cfg(feature = "peers")]
mod crates;
#[cfg(feature = "peers")]
mod iceoryx2;
mod message_queue;
mod notified;
#[cfg(target_feature = "avx512f")]
mod prototype;
#[cfg(any(feature = "peers", has_dpdk))]
mod queue;
#[cfg(has_dpdk)]
mod rte_ring;
mod streams;
#[cfg(has_ucx)]
mod ucx;

use fipsee_measure::harness::Design;

use crate::harness::Mechanism;
use crate::harness::job::{self, Runner};

/// What a mechanism is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Ours,
    /// What the machine or an earlier design takes.
    Baseline,
    /// Rings for one producer and one consumer, over shared memory.
    Ring,
    /// Other queues and messaging systems over shared memory.
    Library,
    Kernel,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub name: &'static str,
    pub kind: Kind,
    /// Can we choose how many messages it holds? Otherwise its streams have a buffer of its own size.
    pub chooses_slots: bool,
    pub call: Option<Runner>,
    pub burst: Option<Runner>,
    pub stream: Option<Runner>,
    /// Why it cannot be measured: what to install.
    pub missing: Option<&'static str>,
}

impl Entry {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, chooses_slots: true, call: None, burst: None, stream: None, missing: None }
    }

    /// Calls, bursts and streams all with the same mechanism.
    fn whole<C: Mechanism>(self) -> Self {
        self.calls::<C>().streams::<C>()
    }

    fn calls<C: Mechanism>(mut self) -> Self {
        self.call = Some(job::calls::<C>);
        self.burst = Some(job::calls::<C>);
        self
    }

    fn single_calls<C: Mechanism>(mut self) -> Self {
        self.call = Some(job::calls::<C>);
        self
    }

    const fn runs(mut self, call: Runner, burst: Option<Runner>, stream: Option<Runner>) -> Self {
        (self.call, self.burst, self.stream) = (Some(call), burst, stream);
        self
    }

    fn streams<C: Mechanism>(mut self) -> Self {
        self.stream = Some(job::stream::<C>);
        self
    }

    const fn with_own_buffers(mut self) -> Self {
        self.chooses_slots = false;
        self
    }

    #[allow(dead_code, reason = "where every library is there, none is missing")]
    const fn missing(mut self, what_to_do: &'static str) -> Self {
        self.missing = Some(what_to_do);
        self
    }
}

/// The names that claims are about.
pub mod names {
    pub const RING: &str = "Fip-see ring";
    /// What the product's clients and daemon use.
    pub const CHANNEL: &str = "Fip-see channel";
    pub const CLASSIC: &str = "classic ring";
    pub const ONE_LINE: &str = "flag on one line";
    /// The best ring of the first experiments.
    pub const PROTOTYPE: &str = "prototype ring";
    pub const ICEORYX2: &str = "iceoryx2 publish-subscribe";
    pub const ICEORYX2_CALLS: &str = "iceoryx2 request-response";
    /// Pipes and sockets as they are used, and the same in a loop that never blocks.
    pub const BYTES: [&str; 3] = ["pipe", "Unix stream", "Unix seqpacket"];
    /// As above, never blocking.
    pub const POLLED_BYTES: [&str; 3] = ["pipe, polled", "Unix stream, polled", "Unix seqpacket, polled"];
}

pub fn all() -> Vec<Entry> {
    let mut all = ours();
    all.extend(baselines());
    all.extend(crates());
    all.extend(debian());
    all.extend(kernel());
    all.sort_by_key(|entry| entry.kind);
    all
}

/// What `fipsee ping` measures, by its name there.
fn ours() -> Vec<Entry> {
    let bare: Runner = |plan| job::design(Design::Bare, false, plan);
    let channel: Runner = |plan| job::design(Design::Channel, false, plan);
    vec![
        Entry::new(names::RING, Kind::Ours).runs(bare, Some(bare), Some(|plan| job::design(Design::Bare, true, plan))),
        Entry::new(names::CHANNEL, Kind::Ours).runs(channel, Some(channel), None),
    ]
}

fn baselines() -> Vec<Entry> {
    let new = |name| Entry::new(name, Kind::Baseline);
    #[cfg(target_feature = "avx512f")]
    let prototype = new(names::PROTOTYPE).calls::<prototype::Calls>().streams::<prototype::Stream>();
    #[cfg(not(target_feature = "avx512f"))]
    let prototype = new(names::PROTOTYPE).missing("it needs a CPU with AVX-512");
    let classic: Runner = |plan| job::design(Design::Classic, false, plan);
    vec![
        new(names::ONE_LINE).runs(|plan| job::design(Design::OneLine, false, plan), None, None),
        new("flag on two lines").runs(|plan| job::design(Design::TwoLines, false, plan), None, None),
        prototype,
        new(names::CLASSIC).runs(classic, Some(classic), Some(|plan| job::design(Design::Classic, true, plan))),
    ]
}

#[cfg(feature = "peers")]
fn crates() -> Vec<Entry> {
    use queue::Pair;
    let (ring, library) = (|name| Entry::new(name, Kind::Ring), |name| Entry::new(name, Kind::Library));
    vec![
        ring("rtrb").whole::<Pair<crates::Rtrb>>(),
        ring("ringbuf").whole::<Pair<crates::Ringbuf>>(),
        library("crossbeam ArrayQueue").whole::<Pair<crates::Array>>(),
        library("crossbeam channel").whole::<Pair<crates::CrossbeamChannel>>(),
        library(names::ICEORYX2).whole::<iceoryx2::PublishSubscribe>(),
        library(names::ICEORYX2_CALLS).calls::<iceoryx2::RequestResponse>(),
    ]
}

#[cfg(not(feature = "peers"))]
fn crates() -> Vec<Entry> {
    let rows = [
        ("rtrb", Kind::Ring),
        ("ringbuf", Kind::Ring),
        ("crossbeam ArrayQueue", Kind::Library),
        ("crossbeam channel", Kind::Library),
        (names::ICEORYX2, Kind::Library),
        (names::ICEORYX2_CALLS, Kind::Library),
    ];
    rows.map(|(name, kind)| Entry::new(name, kind).missing("build with --features peers")).into()
}

/// Peers that need more than crates.
fn debian() -> Vec<Entry> {
    let aeron = Entry::new("Aeron IPC", Kind::Library).with_own_buffers();
    #[cfg(feature = "aeron")]
    let aeron = aeron.whole::<aeron::Aeron>();
    #[cfg(not(feature = "aeron"))]
    let aeron = aeron.missing("it needs cmake 3.30, g++ and libclang: run `cargo xtask bench ipc` as root");
    let dpdk = Entry::new("DPDK rte_ring", Kind::Ring);
    #[cfg(has_dpdk)]
    let dpdk = dpdk.whole::<queue::Pair<rte_ring::RteRing>>();
    #[cfg(not(has_dpdk))]
    let dpdk = dpdk.missing("install libdpdk-dev");
    let ucx = Entry::new("UCX active messages", Kind::Library);
    #[cfg(has_ucx)]
    let ucx = ucx.whole::<ucx::Ucx>();
    #[cfg(not(has_ucx))]
    let ucx = ucx.missing("install libucx-dev");
    vec![aeron, dpdk, ucx]
}

fn kernel() -> Vec<Entry> {
    use message_queue::MessageQueue;
    use streams::{Pipe, PollingPipe, PollingSeqpacket, PollingUnixStream, Seqpacket, Stream, UnixStream};
    let new = |name| Entry::new(name, Kind::Kernel);
    let queue = |name| new(name).with_own_buffers();
    let ([pipe, stream, packets], [polled_pipe, polled_stream, polled_packets]) = (names::BYTES, names::POLLED_BYTES);
    vec![
        new("eventfd and slots").whole::<notified::Notified<notified::EventFd>>(),
        new("futex and slots").whole::<notified::Notified<notified::Futex>>(),
        new("io_uring msg_ring and slots").whole::<notified::Notified<notified::MsgRing>>(),
        new(pipe).with_own_buffers().whole::<Stream<Pipe>>(),
        new(polled_pipe).with_own_buffers().whole::<Stream<PollingPipe>>(),
        new(stream).with_own_buffers().whole::<Stream<UnixStream>>(),
        new(polled_stream).with_own_buffers().whole::<Stream<PollingUnixStream>>(),
        new(packets).with_own_buffers().whole::<Stream<Seqpacket>>(),
        new(polled_packets).with_own_buffers().whole::<Stream<PollingSeqpacket>>(),
        queue("POSIX message queue").single_calls::<MessageQueue<false>>().streams::<MessageQueue<false>>(),
        queue("POSIX message queue, polled").single_calls::<MessageQueue<true>>().streams::<MessageQueue<true>>(),
    ]
}
