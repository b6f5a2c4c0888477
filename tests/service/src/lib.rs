//! A service of calls and streams, in full (docs/adding-a-service.md). A client has two queues: numbers go in by the second, a stream,
//! without an answer; a call on the first comes back with their sum, and with the error of a system call that the service makes.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::Message;
use fipsee_ring::channel::{Profile, RegionLayout, ServerQueue};
use fipsee_ring::control::{RefusalCode, SERVICE_INFO_BYTES, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_serve::session::{Adopted, AdoptedChannel, Attachment, Channel, Client, Denial, Granted, Part, Positions, Service};
use fipsee_serve::{Assignment, Command, Engine, Metric, Queue, QueueName, Quiesced, Taken, Turn, WorkerHandle};
use rustix::process::{getpriority_process, getsid};

/// Number of the service in ATTACH.
pub const SERVICE_SUMS: u16 = 0x7e57;
/// The queue of calls, and that of the stream.
pub const QUEUES: u16 = 2;
/// Calls outstanding, and slots of the stream.
pub const DEPTH: u32 = 16;
/// It adds nothing to the rules of channels.
pub const PROFILE: Profile = Profile { features: 0, event_credits: 0, flags: &[] };

/// The service: its workers, and how many calls they have answered.
pub struct Sums<E: Engine>(pub Vec<WorkerHandle<E>>, pub Arc<AtomicU64>);

/// One queue of a client, on its worker's thread: that of the stream counts no calls.
struct SumQueue {
    end: ServerQueue,
    sum: Arc<AtomicU64>,
    calls: Option<Arc<AtomicU64>>,
}

/// What is held for a client.
struct SumClient(Channel, Arc<AtomicU64>);

impl<E: Engine> Queue<E> for SumQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.end)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.end)
    }

    fn visit(&mut self, _engine: &mut E, turn: Turn) -> Taken {
        let ServerQueue { requests, completions, .. } = &mut self.end;
        let (mut message, mut taken) = (Message::ZERO, 0);
        while taken < DEPTH.min(turn.requests) && requests.receive(&mut message) {
            taken += 1;
            if let Some(calls) = &self.calls {
                let asked = if message.word(1) == 0 { getpriority_process(None) } else { getsid(None).map(|_| 0) };
                message.set_word(1, self.sum.load(Ordering::Relaxed));
                message.set_word(2, asked.map_or_else(|refused| refused.raw_os_error().unsigned_abs().into(), |_| 0));
                calls.fetch_add(1, Ordering::Relaxed);
                completions.publish(&message);
            } else {
                self.sum.fetch_add(message.word(0), Ordering::Relaxed);
            }
        }
        if taken > 0 {
            requests.disarm();
            if self.calls.is_none() {
                requests.release_all();
            }
            Queue::<E>::flush(self);
        }
        Taken::new(taken, 0)
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn moved(&mut self, _id: u32) {}

    /// Its positions, and how many messages the stream has brought.
    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        let positions: Positions = (self.end.requests.cursor(), self.end.completions.cursor());
        Some(Box::new((positions, self.end.requests.received())))
    }
}

impl<E: Engine> Sums<E> {
    /// Have workers serve the ends of a client's queues.
    fn serve(
        &self,
        client: &Client<'_>,
        ends: Vec<ServerQueue>,
        sum: &Arc<AtomicU64>,
    ) -> (Vec<Assignment>, Vec<(usize, Command<E>)>) {
        let name = |index| QueueName { client: client.id, index };
        let assignments: Vec<Assignment> = ends.iter().map(|_| Assignment::choose(&self.0)).collect();
        let add = |((end, assignment), index): ((_, &Assignment), _)| {
            let queue = SumQueue { end, sum: Arc::clone(sum), calls: (index == 0).then(|| Arc::clone(&self.1)) };
            (assignment.worker, Command::add(name(index), client.share.clone(), move |_| Ok(queue), |_| {}))
        };
        let commands = ends.into_iter().zip(&assignments).zip(0_u16..).map(add).collect();
        (assignments, commands)
    }
}

impl<E: Engine> Service<E> for Sums<E> {
    fn number(&self) -> u16 {
        SERVICE_SUMS
    }

    fn metrics(&self) -> Vec<(&'static str, Metric)> {
        vec![("sums", Metric::Named(vec![("calls", self.1.load(Ordering::Relaxed).into())]))]
    }

    fn attach(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<E>, Denial> {
        if wanted.name != "sums" || wanted.queue_count != QUEUES {
            return Err(refuse(RefusalCode::UnknownName, "there is only 'sums' here, with two queues; attach to that").into());
        }
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, QUEUES, DEPTH, 0, 0), |_| {})?;
        let held = SumClient(Channel::of(&grant), Arc::default());
        let (assignments, commands) = self.serve(client, std::mem::take(&mut grant.queues), &held.1);
        Ok(Granted { attachment: Box::new(held), assignments, reply: grant.attached([0; SERVICE_INFO_BYTES]), grant, commands })
    }

    fn adopt(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<E>, String> {
        let AdoptedChannel { own, channel, queues } = Channel::adopt(&PROFILE, parts)?;
        let held = SumClient(channel, Arc::new(own.parse::<u64>().map_err(|error| error.to_string())?.into()));
        let (mut ends, mut states) = (Vec::new(), Vec::new());
        for (mut end, received) in queues {
            let received = received.parse().map_err(|_| "what its stream has brought is no number")?;
            states.push(((end.requests.cursor(), end.completions.cursor()), received));
            end.requests.continue_stream(received);
            ends.push(end);
        }
        let (id, (assignments, commands)) = (client.id, self.serve(client, ends, &held.1));
        let is_same = Box::new(move |quiesced: &Quiesced| quiesced.has_states(id, &states));
        Ok(Adopted { attachment: Box::new(held), assignments, commands, is_same })
    }
}

impl<E: Engine> Attachment<E> for SumClient {
    fn name(&self) -> &str {
        "sums"
    }

    fn service(&self) -> u16 {
        SERVICE_SUMS
    }

    fn save(&self, client: u64, quiesced: &Quiesced) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        self.0.save(&self.1.load(Ordering::Relaxed).to_string(), |index| {
            let state = quiesced.state::<(Positions, u32)>(QueueName { client, index });
            state.map(|(at, received)| (*at, received.to_string())).ok_or_else(|| "a queue of it is not served".to_owned())
        })
    }
}
