//! Notifications of the kernel that carry no message: eventfd, futex, io_uring's MSG_RING. The messages are in slots of
//! shared memory; a notification says how many more are there. Both sides sleep in the kernel while they wait, which is
//! what these are for: a reader that polls the slots would need none of them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::{AtomicU32, Message};
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::EventfdFlags;
use rustix::thread::futex;

use crate::harness::{End, Mechanism, Plan, Side, shared};

/// One direction of notifications.
pub trait Notification: Sized {
    /// A pair of ends, the first for the notifier, made before the fork.
    type Shared;

    /// Make it.
    fn share() -> Result<Self::Shared, String>;
    /// The end of the notifier (`true`), or of the waiter.
    fn open(shared: Self::Shared, notifies: bool) -> Self;
    /// There are `count` more.
    fn notify(&mut self, count: u32);
    /// Sleep until there are more; how many.
    fn wait(&mut self) -> u32;
}

/// A counter in the kernel: written to add, read to take all, which sleeps while it is zero.
pub struct EventFd(OwnedFd);

impl Notification for EventFd {
    type Shared = OwnedFd;

    fn share() -> Result<OwnedFd, String> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| error.to_string())
    }

    fn open(shared: OwnedFd, _: bool) -> Self {
        Self(shared)
    }

    fn notify(&mut self, count: u32) {
        let written = rustix::io::write(&self.0, &u64::from(count).to_ne_bytes());
        assert_eq!(written, Ok(8), "cannot write to the eventfd");
    }

    fn wait(&mut self) -> u32 {
        let mut bytes = [0; 8];
        let read = rustix::io::read(&self.0, &mut bytes);
        assert_eq!(read, Ok(8), "cannot read from the eventfd");
        u32::try_from(u64::from_ne_bytes(bytes)).unwrap_or(u32::MAX)
    }
}

/// A counter in shared memory and the sleep on it. As in a semaphore, the notifier calls the kernel only if the waiter
/// sleeps.
pub struct Futex {
    shared: &'static Semaphore,
    seen: u32,
}

/// What both sides of it see.
pub struct Semaphore {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl Notification for Futex {
    type Shared = &'static Semaphore;

    fn share() -> Result<&'static Semaphore, String> {
        // SAFETY: two atomics.
        unsafe { shared::zeroed() }
    }

    fn open(shared: &'static Semaphore, _: bool) -> Self {
        Self { shared, seen: 0 }
    }

    fn notify(&mut self, count: u32) {
        self.shared.count.fetch_add(count, Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::SeqCst) != 0 {
            let woken = futex::wake(&self.shared.count, futex::Flags::empty(), 1);
            assert!(woken.is_ok(), "cannot wake: {woken:?}");
        }
    }

    fn wait(&mut self) -> u32 {
        loop {
            let now = self.shared.count.load(Ordering::SeqCst);
            if now != self.seen {
                return now.wrapping_sub(std::mem::replace(&mut self.seen, now));
            }
            self.shared.sleepers.store(1, Ordering::SeqCst);
            // Returns at once if the count has changed; every other reason to return is met by looking again.
            let _ = futex::wait(&self.shared.count, futex::Flags::empty(), self.seen, None);
            self.shared.sleepers.store(0, Ordering::Relaxed);
        }
    }
}

/// Completions that a ring holds: more than slots, so that none is ever refused.
const RING_COMPLETIONS: u32 = 16_384;

/// A completion posted from the one's ring to the other's: IORING_OP_MSG_RING. The waiter sleeps in io_uring_enter.
/// The rings are made before the fork, since a ring is named by a descriptor.
pub struct MsgRing {
    ours: IoUring,
    theirs: IoUring,
}

impl Notification for MsgRing {
    type Shared = (IoUring, IoUring);

    fn share() -> Result<(IoUring, IoUring), String> {
        let ring = || {
            IoUring::builder()
                .setup_cqsize(RING_COMPLETIONS)
                .build(256)
                .map_err(|error| format!("cannot make an io_uring: {error}"))
        };
        Ok((ring()?, ring()?))
    }

    fn open((notifier, waiter): (IoUring, IoUring), notifies: bool) -> Self {
        if notifies { Self { ours: notifier, theirs: waiter } } else { Self { ours: waiter, theirs: notifier } }
    }

    fn notify(&mut self, count: u32) {
        let target = types::Fd(self.theirs.as_raw_fd());
        // No completion of its own on success: it is not waited for.
        let entry = opcode::MsgRingData::new(target, count.cast_signed(), 0, None).build();
        let entry = entry.flags(io_uring::squeue::Flags::SKIP_SUCCESS);
        // SAFETY: it refers to no memory.
        let pushed = unsafe { self.ours.submission().push(&entry) };
        assert!(pushed.is_ok(), "the submission queue is full");
        let submitted = self.ours.submit();
        assert!(matches!(submitted, Ok(1)), "cannot submit: {submitted:?}");
        let failed = self.ours.completion().next();
        assert!(failed.is_none(), "cannot post to the other ring: {failed:?}");
    }

    fn wait(&mut self) -> u32 {
        loop {
            let posted: i32 = self.ours.completion().map(|entry: cqueue::Entry| entry.result()).sum();
            match u32::try_from(posted) {
                Ok(0) => {}
                Ok(count) => return count,
                Err(_) => panic!("the other ring reports error {posted}"),
            }
            let waited = self.ours.submit_and_wait(1);
            assert!(waited.is_ok(), "cannot wait: {waited:?}");
        }
    }
}

/// Slots of one direction, and the reader's word on how many it has emptied.
struct Slots {
    first: *mut u8,
    emptied: &'static AtomicU64,
}

impl Slots {
    fn make(slot_count: u32) -> Result<Self, String> {
        // SAFETY: an atomic.
        let emptied = unsafe { shared::zeroed() }?;
        Ok(Self { first: shared::map(slot_count as usize * 64)?, emptied })
    }
}

/// Slots and notifications each way.
pub struct Notified<N: Notification> {
    slots: [Slots; 2],
    notifications: [N::Shared; 2],
}

pub struct NotifiedEnd<N> {
    slot_count: u64,
    outgoing: Slots,
    incoming: Slots,
    notify: N,
    receive: N,
    sent: u64,
    received: u64,
    /// Messages we know of and have not taken.
    there: u64,
}

impl<N: Notification> Mechanism for Notified<N> {
    type End = NotifiedEnd<N>;

    fn share(plan: &Plan) -> Result<Self, String> {
        let slots = [Slots::make(plan.slots)?, Slots::make(plan.slots)?];
        Ok(Self { slots, notifications: [N::share()?, N::share()?] })
    }

    fn open(self, side: Side, plan: &Plan) -> Result<NotifiedEnd<N>, String> {
        let ([calls, answers], [of_calls, of_answers]) = (self.slots, self.notifications);
        let is_client = side == Side::Client;
        let (of_calls, of_answers) = (N::open(of_calls, is_client), N::open(of_answers, !is_client));
        let (outgoing, incoming, notify, receive) =
            if is_client { (calls, answers, of_calls, of_answers) } else { (answers, calls, of_answers, of_calls) };
        let slot_count = plan.slots.into();
        Ok(NotifiedEnd { slot_count, outgoing, incoming, notify, receive, sent: 0, received: 0, there: 0 })
    }
}

impl<N: Notification> NotifiedEnd<N> {
    fn slot(&self, slots: &Slots, position: u64) -> *mut Message {
        let index = usize::try_from(position % self.slot_count).unwrap_or(0);
        slots.first.wrapping_add(index * 64).cast()
    }
}

impl<N: Notification> End for NotifiedEnd<N> {
    fn send(&mut self, messages: &[Message]) {
        let mut announced = 0;
        for message in messages {
            while self.sent - self.outgoing.emptied.load(Ordering::Acquire) >= self.slot_count {
                // Only in streams. The reader must know of all there is before we wait for it to make room.
                if announced > 0 {
                    self.notify.notify(std::mem::take(&mut announced));
                }
                std::thread::yield_now();
            }
            // SAFETY: the slot is aligned, inside a mapping that stays, and ours: the reader has emptied it.
            unsafe { self.slot(&self.outgoing, self.sent).write(*message) };
            self.sent += 1;
            announced += 1;
        }
        // The system call, or the atomic operation of the futex, orders the slots before it.
        if announced > 0 {
            self.notify.notify(announced);
        }
    }

    fn receive(&mut self, into: &mut [Message]) -> usize {
        if self.there == 0 {
            self.there = self.receive.wait().into();
        }
        let count = usize::try_from(self.there).unwrap_or(usize::MAX).min(into.len());
        for message in &mut into[..count] {
            // SAFETY: aligned, inside a mapping that stays, and filled: the writer has said so.
            *message = unsafe { self.slot(&self.incoming, self.received).read() };
            self.received += 1;
        }
        self.there -= count as u64;
        self.incoming.emptied.store(self.received, Ordering::Release);
        count
    }
}
