//! Fip-see, the channel of the product: a region laid out and written as the daemon does, read back and checked as the
//! client does, the ends of its queue with doorbells, calls limited to the depth, adaptive waiting that arms the doorbell
//! and sleeps. What is above it in the product, requests and disks, is not here.

use std::os::fd::AsFd;
use std::sync::Arc;

use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, FEATURES, Profile, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::pace::let_answers_gather;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::ring::Reader;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, Next, WaitMode};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::pacing::Pacing;
use crate::harness::{End, Mechanism, Plan, Side};

/// What services of the product add to a channel.
const PROFILE: Profile = Profile { features: FEATURES, event_credits: 2, flags: &[] };

/// The region of a channel of one queue, and its doorbells.
pub struct FipseeChannel {
    region: Region,
    daemon_doorbell: std::os::fd::OwnedFd,
    client_doorbell: (SocketDoorbell, SocketDoorbell),
}

/// One side of it.
pub struct ChannelEnd {
    queue: Queue,
    backoff: Backoff,
    pacing: Pacing,
}

enum Queue {
    Client(ClientQueue),
    Server(ServerQueue),
}

impl Mechanism for FipseeChannel {
    type End = ChannelEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        let layout = RegionLayout::plan(&PROFILE, 1, plan.slots, 0, 1);
        let region = Region::create("fipsee-peers", layout.region_bytes).map_err(|error| error.to_string())?;
        layout.write_to(&region).map_err(|fault| fault.to_string())?;
        let daemon_doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let daemon_doorbell = daemon_doorbell.map_err(|error| error.to_string())?;
        let client_doorbell = SocketDoorbell::pair().map_err(|error| error.to_string())?;
        Ok(Self { region, daemon_doorbell, client_doorbell })
    }

    fn open(self, side: Side, _: &Plan) -> Result<ChannelEnd, String> {
        let file = self.region.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let region = Region::from_peer(file, self.region.length_bytes(), Access::ReadWrite).map_err(|error| error.to_string())?;
        let layout = RegionLayout::read_from(&PROFILE, &region).map_err(|fault| fault.to_string())?;
        let [geometry] = layout.queues.as_slice() else { return Err("the channel has not one queue".to_owned()) };
        let (region, doorbell) = (Arc::new(region), EventDoorbell::from_fd(self.daemon_doorbell));
        let queue = match side {
            Side::Client => {
                ClientQueue::open(&region, geometry, doorbell, self.client_doorbell.1, &geometry.tuning()).map(Queue::Client)
            }
            Side::Server => {
                ServerQueue::open(&region, geometry, doorbell, self.client_doorbell.0, &geometry.tuning()).map(Queue::Server)
            }
        };
        Ok(ChannelEnd {
            queue: queue.map_err(|fault| fault.to_string())?,
            backoff: Backoff::new(WaitMode::Adaptive, DEFAULT_LOOK),
            pacing: Pacing::new(side),
        })
    }
}

impl End for ChannelEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        match &mut self.queue {
            Queue::Client(queue) => {
                assert!(queue.requests.publish_all(messages).is_ok(), "more calls than the channel's depth");
                if queue.requests.reader_needs_doorbell() {
                    queue.daemon_doorbell.ring();
                }
                if let Some(ownership) = self.pacing.sent(messages.len(), &mut queue.completions, None) {
                    queue.requests.set_ownership(ownership);
                }
            }
            Queue::Server(queue) => {
                queue.completions.publish_all(messages);
                if queue.completions.reader_needs_doorbell() {
                    queue.client_doorbell.ring();
                }
                let answers = Some(queue.completions.memory());
                if let Some(ownership) = self.pacing.sent(messages.len(), &mut queue.requests, answers) {
                    queue.completions.set_ownership(ownership);
                }
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        self.pacing.hold();
        let Self { queue, backoff, .. } = self;
        match queue {
            Queue::Client(queue) => {
                let doorbell = &queue.our_doorbell;
                let count = take(&mut queue.completions, into, backoff, true, doorbell.as_fd(), || {
                    let _ = doorbell.drain();
                });
                for _ in 0..count {
                    queue.requests.answered();
                }
                count
            }
            // The daemon watches its eventfd edge-triggered and never reads it; here poll needs it empty again.
            Queue::Server(queue) => {
                let doorbell = queue.our_doorbell.as_fd();
                take(&mut queue.requests, into, backoff, false, doorbell, || {
                    let _ = rustix::io::read(doorbell, &mut [0_u8; 8]);
                })
            }
        }
    }
}

/// Wait as client and daemon do, then take what is there.
#[inline(always)]
fn take(
    reader: &mut Reader<fipsee_ring::mapped::MappedRing>,
    into: &mut [Message],
    backoff: &mut Backoff,
    expected: bool,
    doorbell: std::os::fd::BorrowedFd<'_>,
    silence: impl Fn(),
) -> usize {
    loop {
        let mut count = 0;
        while count < into.len() && reader.receive(&mut into[count]) {
            count += 1;
        }
        if count > 0 {
            backoff.reset();
            return count;
        }
        if backoff.step(expected) == Next::Sleep {
            if !reader.arm_and_work_remains() {
                let _ = rustix::event::poll(&mut [PollFd::new(&doorbell, PollFlags::IN)], None);
            }
            reader.disarm();
            silence();
            backoff.reset();
        } else if expected {
            let_answers_gather(into.len());
        }
    }
}
