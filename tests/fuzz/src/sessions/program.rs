//! A program with one service, which takes memory of its clients, answers every message with itself, and has one ATTACH wait for others.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use fipsee_ring::Message;
use fipsee_ring::channel::{Profile, RegionLayout, ServerQueue};
use fipsee_ring::control::{FEATURE_LIST, LISTED_INFO_BYTES, Listed, Page, Refusal, RefusalCode, SERVICE_INFO_BYTES, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::region::Region;
use fipsee_serve::session::{Ack, Attachment, Client, ClientLimits, Denial, Granted, Host, TakesMemory};
use fipsee_serve::{Assignment, Command, Queue, QueueName, Taken, Turn, When, Which, WorkerHandle};

/// Of ATTACH.
pub(super) const SERVICE: u16 = 3;
pub(super) const FEATURES: u64 = fipsee_ring::channel::FEATURES | FEATURE_LIST;
const NAME: &str = "echo";
pub(super) const MAX_CLIENTS: usize = 6;
const PROFILE: Profile = Profile { features: FEATURES, event_credits: 0, flags: &[] };
const MAX_DEPTH: u32 = 8;

type Regions = Arc<Mutex<Vec<Weak<Region>>>>;

pub(super) struct Program {
    workers: Vec<WorkerHandle<()>>,
    clients: u64,
    /// Attachments that are not released.
    pub(super) attached: Arc<AtomicU64>,
    departures: Arc<AtomicU64>,
    regions: Regions,
}

impl Program {
    pub(super) fn new(workers: Vec<WorkerHandle<()>>) -> Self {
        let (attached, departures, regions) = Default::default();
        Self { workers, clients: 0, attached, departures, regions }
    }

    /// Memory that is still mapped.
    pub(super) fn regions_left(&self) -> usize {
        self.regions.lock().expect("one thread").iter().filter(|region| region.strong_count() > 0).count()
    }
}

impl Host<()> for Program {
    fn next_client(&mut self) -> u64 {
        self.clients += 1;
        self.clients
    }

    fn limits(&self) -> ClientLimits {
        ClientLimits { max_queues: 3, max_depth: MAX_DEPTH, max_pool_bytes: 4096, max_memory_bytes: 8192 }
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        (MAX_CLIENTS, Some(4))
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn list(&self, _client: &Client<'_>, service: u16, after: &str) -> Result<Page, Refusal> {
        if service != SERVICE {
            return Err(refuse(RefusalCode::Malformed, "not the service"));
        }
        let entries =
            if after < NAME { vec![Listed { name: NAME.to_owned(), service_info: [7; LISTED_INFO_BYTES] }] } else { Vec::new() };
        Ok(Page { entries, more: false })
    }

    /// With a flag, only after all others have left.
    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<()>, Denial> {
        if wanted.service != SERVICE || wanted.queue_count == 0 || wanted.depth == 0 {
            return Err(refuse(RefusalCode::Malformed, "not the service, or no queue").into());
        }
        if wanted.flags & 1 != 0 && self.attached.load(Ordering::Relaxed) > 0 {
            return Err(Denial::Later(refuse(RefusalCode::Busy, "others are attached")));
        }
        let limits = &client.limits;
        let (queues, depth) = (wanted.queue_count.min(limits.max_queues), wanted.depth.min(limits.max_depth));
        let layout = RegionLayout::plan(&PROFILE, queues, depth, wanted.pool_bytes.min(limits.max_pool_bytes), 1);
        let mut grant = Grant::new(layout, |region| self.regions.lock().expect("one thread").push(Arc::downgrade(region)))?;
        let ends = std::mem::take(&mut grant.queues);
        let assignments: Vec<Assignment> = ends.iter().map(|_| Assignment::choose(&self.workers)).collect();
        let add = |((end, assignment), index): ((ServerQueue, &Assignment), u16)| {
            let name = QueueName { client: client.id, index };
            let make = move |_| Ok(EchoQueue { end, regions: BTreeMap::new() });
            let added = |added: Result<(), _>| assert!(added.is_ok(), "it is served");
            (assignment.worker, Command::add(name, client.share.clone(), make, added))
        };
        let commands = ends.into_iter().zip(&assignments).zip(0..).map(add).collect();
        self.attached.fetch_add(1, Ordering::Relaxed);
        let (attached, departures, regions) =
            (Arc::clone(&self.attached), Arc::clone(&self.departures), Arc::clone(&self.regions));
        let attachment = Box::new(EchoClient { region: Arc::clone(&grant.region), attached, departures, regions });
        Ok(Granted { attachment, assignments, reply: grant.attached([0; SERVICE_INFO_BYTES]), grant, commands })
    }

    fn command(&mut self, worker: usize, command: Command<()>) {
        self.workers[worker].mailbox.send(command);
    }

    fn uneven(&self, nth: usize) -> Option<(usize, Assignment)> {
        Assignment::uneven(&self.workers).filter(|_| nth == 0)
    }

    fn departures(&self) -> u64 {
        self.departures.load(Ordering::Relaxed)
    }
}

struct EchoClient {
    region: Arc<Region>,
    attached: Arc<AtomicU64>,
    departures: Arc<AtomicU64>,
    regions: Regions,
}

impl Attachment<()> for EchoClient {
    fn name(&self) -> &str {
        NAME
    }

    fn service(&self) -> u16 {
        SERVICE
    }

    fn memory(&self) -> Option<&dyn TakesMemory<()>> {
        Some(self)
    }

    fn release(&self, client: u64) {
        assert!(Arc::strong_count(&self.region) == 1, "client {client} is released, and a queue of it is served");
        self.attached.fetch_sub(1, Ordering::Relaxed);
        self.departures.fetch_add(1, Ordering::Relaxed);
    }
}

impl TakesMemory<()> for EchoClient {
    fn add_region(&self, client: u64, id: u16, region: &Arc<Region>, _access: u16, ack: Ack) -> Command<()> {
        self.regions.lock().expect("one thread").push(Arc::downgrade(region));
        let region = Arc::clone(region);
        Command::change(Which::Client(client), When::Now, move |queue: &mut EchoQueue| {
            let _until_dropped = &ack;
            assert!(queue.regions.insert(id, Arc::clone(&region)).is_none(), "region {id} is there already");
        })
    }

    fn remove_region(&self, client: u64, id: u16, ack: Ack) -> Command<()> {
        Command::change(Which::Client(client), When::Idle, move |queue: &mut EchoQueue| {
            let _until_dropped = &ack;
            assert!(queue.regions.remove(&id).is_some(), "region {id} is not there");
        })
    }
}

struct EchoQueue {
    end: ServerQueue,
    regions: BTreeMap<u16, Arc<Region>>,
}

impl Queue<()> for EchoQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.end)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.end)
    }

    fn visit(&mut self, (): &mut (), _turn: Turn) -> Taken {
        let (mut message, mut taken) = (Message::ZERO, 0);
        while taken < MAX_DEPTH && self.end.requests.receive(&mut message) {
            self.end.completions.publish(&message);
            taken += 1;
        }
        Taken::new(taken, 0)
    }

    fn depth(&self) -> u32 {
        MAX_DEPTH
    }

    /// It begins no work under its number.
    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}
