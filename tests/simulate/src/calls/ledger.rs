//! What became of each call: what the protocol promises of it.

use crate::context::Context;

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Started,
    /// Its client is gone, or its server: it may still be carried out.
    Lost,
    CarriedOut,
    LostAndCarriedOut,
    Answered,
}

/// All calls of a lifetime, by number.
#[derive(Debug)]
pub(super) struct Ledger {
    calls: Vec<Progress>,
    first: u32,
    limit: usize,
    answered: u32,
}

/// What a call is answered with.
pub(super) const fn reply_to(call: u64, client: u64) -> u64 {
    call.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ client
}

impl Ledger {
    pub(super) const fn new(requests: u32, first: u32) -> Self {
        Self { calls: Vec::new(), first, limit: requests as usize, answered: 0 }
    }

    /// Calls that were made.
    pub(super) fn made(&self) -> u32 {
        u32::try_from(self.calls.len()).unwrap_or(u32::MAX)
    }

    /// Calls that were answered.
    pub(super) const fn answered(&self) -> u32 {
        self.answered
    }

    /// Has every call been started?
    pub(super) const fn is_used_up(&self) -> bool {
        self.calls.len() >= self.limit
    }

    /// The number of a new call.
    pub(super) fn start(&mut self) -> u64 {
        self.calls.push(Progress::Started);
        self.calls.len() as u64 + u64::from(self.first)
    }

    fn find(&mut self, call: u64) -> Option<&mut Progress> {
        let place = call.checked_sub(u64::from(self.first) + 1)?;
        self.calls.get_mut(usize::try_from(place).ok()?)
    }

    /// A worker carries it out.
    pub(super) fn carry_out(&mut self, context: &Context, call: u64) {
        match self.find(call) {
            Some(progress @ Progress::Started) => *progress = Progress::CarriedOut,
            Some(progress @ Progress::Lost) => *progress = Progress::LostAndCarriedOut,
            Some(progress) => {
                let progress = *progress;
                context.violated(|| format!("call {call} is carried out, and it was {progress:?} already"));
            }
            None => context.violated(|| format!("{call} is carried out, and was not made")),
        }
    }

    /// Its client has the reply.
    pub(super) fn answer(&mut self, context: &Context, call: u64) {
        match self.find(call) {
            Some(progress @ Progress::CarriedOut) => *progress = Progress::Answered,
            Some(progress) => {
                let progress = *progress;
                context.violated(|| format!("call {call} is answered, and it is {progress:?}"));
            }
            None => context.violated(|| format!("{call} is answered, and was not made")),
        }
        self.answered += 1;
    }

    /// Its client will have no reply.
    pub(super) fn lose(&mut self, call: u64) {
        match self.find(call) {
            Some(progress @ Progress::Started) => *progress = Progress::Lost,
            Some(progress @ Progress::CarriedOut) => *progress = Progress::LostAndCarriedOut,
            _ => {}
        }
    }

    /// After a lifetime each call has been answered or lost.
    pub(super) fn check_end(&self, context: &Context) {
        let is_due = |progress: &&Progress| matches!(progress, Progress::Started | Progress::CarriedOut);
        let due = self.calls.iter().filter(is_due).count();
        if due > 0 {
            context.violated(|| format!("{due} calls were neither answered nor lost"));
        }
    }
}
