//! The client's port: what every client does with its end of a queue, for any service. It wakes the daemon after messages
//! were published, waits for what comes back, notices that the daemon is gone, and tries to attach again.

use std::time::{Duration, Instant};

use crate::channel::ClientQueue;
use crate::clock;
use crate::doorbell::DoorbellCounts;
use crate::error::Error;
use crate::notify::{CallerModerator, Policy, Verdict};
use crate::pace::{CallerPace, let_answers_gather};
use crate::wait::{Backoff, Next};

/// How many empty looks may pass before a polling client asks the kernel whether the daemon is still there: at most 5 us each,
/// far below the 100 ms within which its end must be noticed.
const LOOKS_PER_LIVENESS_CHECK: u32 = 4096;

/// The client's end of a queue, and how it is waited for. Functions that may find the daemon gone take `is_hung_up`, which asks
/// the kernel whether it closed the control connection, and fail with [`Error::Disconnected`] when it did and nothing is left to
/// receive.
#[derive(Debug)]
pub struct Port {
    pub queue: ClientQueue,
    /// Says when it is too early to look for the answer.
    pub pace: CallerPace,
    /// Reset when what was waited for has come.
    pub backoff: Backoff,
    looks: u32,
    pub counts: DoorbellCounts,
    /// Doorbells that a policy may hold back. None: each is rung at once.
    moderator: Option<Box<CallerModerator>>,
}

impl Port {
    pub fn new(queue: ClientQueue, backoff: Backoff) -> Self {
        Self {
            pace: CallerPace::new(&queue.tuning),
            queue,
            backoff,
            looks: 0,
            counts: DoorbellCounts::default(),
            moderator: None,
        }
    }

    /// Ring the daemon's doorbell as `policy` says from now on; its completions are requests here. What is held back is rung at the
    /// latest when the caller waits: one that does something else in between leaves its requests there for so long.
    pub fn set_policy(&mut self, policy: Option<Policy>) {
        self.ring_what_is_held();
        self.moderator = policy.map(|policy| Box::new(CallerModerator::new(policy, clock::ticks_per_second())));
    }

    /// A burst was published: wake the daemon if it sleeps, and guess when the first answer comes.
    #[inline(always)]
    pub fn published(&mut self) {
        if self.moderator.is_some() {
            self.ring_moderated(true);
        } else {
            self.ring_a_sleeper();
        }
        self.pace_first_look();
    }

    /// Wake the daemon if it sleeps, whatever the policy.
    #[inline(always)]
    pub fn ring_a_sleeper(&mut self) {
        if self.queue.requests.reader_needs_doorbell() {
            self.ring();
        }
    }

    #[inline(always)]
    fn ring(&mut self) {
        self.counts.doorbells += 1;
        self.queue.daemon_doorbell.ring();
    }

    /// `more`: requests may be published before the caller waits.
    #[inline(never)]
    fn ring_moderated(&mut self, more: bool) {
        let Some(moderator) = self.moderator.as_deref_mut() else { return };
        match moderator.ask(&mut self.queue.requests, clock::ticks, more) {
            Verdict::Ring => self.ring(),
            Verdict::HoldBack { is_new } => self.counts.suppressed += u64::from(is_new),
            Verdict::Nothing => {}
        }
    }

    /// Nothing came: ring what is held back if its time has come. `more`: requests may be published before the caller waits.
    #[inline(always)]
    pub fn ring_if_due(&mut self, more: bool) {
        if self.moderator.is_some() {
            self.ring_due(more);
        }
    }

    #[inline(never)]
    fn ring_due(&mut self, more: bool) {
        if self.moderator.as_ref().is_some_and(|moderator| moderator.is_due(clock::ticks, more)) {
            self.ring_moderated(more);
        }
    }

    fn held_until(&self) -> Option<u64> {
        self.moderator.as_ref()?.due()
    }

    /// Ring at once if a doorbell is held back: the caller waits elsewhere.
    pub fn ring_what_is_held(&mut self) {
        if self.moderator.as_mut().is_some_and(|moderator| moderator.release(&mut self.queue.requests, clock::ticks)) {
            self.ring();
        }
    }

    /// Guess when the first answer to what was published comes.
    #[inline(always)]
    pub fn pace_first_look(&mut self) {
        let queue = &mut self.queue;
        if queue.requests.outstanding() == 1 {
            queue.completions.begin_run();
            if let Some(ownership) = self.pace.begin().and_then(|asked| asked.apply(&mut queue.completions)) {
                queue.requests.set_ownership(ownership);
            }
        } else {
            self.pace.interrupt();
        }
    }

    /// A look found nothing: wait until the next is worthwhile; `false` when `deadline_ticks` has passed instead. `gather`:
    /// answers come in a message each, so that many of them are better taken together.
    #[inline(always)]
    pub fn pause<S>(
        &mut self,
        deadline_ticks: Option<u64>,
        gather: bool,
        is_hung_up: impl FnOnce() -> bool,
    ) -> Result<bool, Error<S>> {
        if deadline_ticks.is_some_and(|deadline| clock::ticks() >= deadline) {
            self.backoff.reset();
            return Ok(false);
        }
        self.ring_if_due(false);
        match self.backoff.step_watching(true, || Some(self.queue.completions.watch())) {
            Next::Look => {
                self.check_liveness_now_and_then(is_hung_up)?;
                if gather {
                    let_answers_gather(self.queue.requests.outstanding() as usize);
                }
            }
            Next::Sleep => self.sleep(deadline_ticks)?,
        }
        Ok(true)
    }

    /// While polling: once in many calls, ask whether the daemon is gone.
    #[inline(always)]
    pub fn check_liveness_now_and_then<S>(&mut self, is_hung_up: impl FnOnce() -> bool) -> Result<(), Error<S>> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_LIVENESS_CHECK) { self.check_liveness(is_hung_up) } else { Ok(()) }
    }

    #[cold]
    fn check_liveness<S>(&self, is_hung_up: impl FnOnce() -> bool) -> Result<(), Error<S>> {
        // What the daemon published before it died still counts.
        if self.queue.completions.is_over(is_hung_up) { Err(Error::Disconnected) } else { Ok(()) }
    }

    #[cold]
    fn sleep<S>(&mut self, deadline_ticks: Option<u64>) -> Result<(), Error<S>> {
        if !self.queue.completions.arm_and_work_remains() {
            let deadline_ticks = deadline_ticks.into_iter().chain(self.held_until()).min();
            let slept = self.queue.sleep(deadline_ticks);
            slept.map_err(|source| Error::Io { context: "wait for the daemon's doorbell", source })?;
        }
        self.woken()
    }

    /// The doorbell rang, or the wait for it was given up: silence it.
    pub fn woken<S>(&mut self) -> Result<(), Error<S>> {
        self.backoff.reset();
        if self.queue.woken_counting(&mut self.counts) { Ok(()) } else { Err(Error::Disconnected) }
    }
}

#[derive(Debug)]
pub enum ReconnectEvent<'a, E> {
    Lost,
    /// An attempt failed; the next follows after the pause.
    AttemptFailed {
        attempts: u32,
        error: &'a E,
    },
    /// Attached again, everything unanswered was submitted again.
    Resumed {
        attempts: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct ReconnectPolicy {
    /// Give up when this long has passed since the loss.
    pub give_up_after: Duration,
    /// Pause before the second attempt; doubles up to `pause_max`.
    pub pause_first: Duration,
    pub pause_max: Duration,
}

impl ReconnectPolicy {
    /// Never give up. (To fail at once, do not reconnect.)
    pub const FOR_EVER: Self =
        Self { give_up_after: Duration::MAX, pause_first: Duration::from_millis(5), pause_max: Duration::from_secs(1) };

    /// Give up when this long has passed since the loss.
    pub const fn within(give_up_after: Duration) -> Self {
        Self { give_up_after, ..Self::FOR_EVER }
    }

    /// Make attempts to attach again until one succeeds. `hook` is called at each step.
    ///
    /// # Errors
    /// The last attempt's error when the time is up, or when it is not `is_transient`.
    pub fn keep_trying<E>(
        &self,
        mut attempt: impl FnMut() -> Result<(), E>,
        is_transient: impl Fn(&E) -> bool,
        hook: &mut dyn FnMut(ReconnectEvent<'_, E>),
    ) -> Result<(), E> {
        let lost = Instant::now();
        let (mut attempts, mut pause) = (0_u32, self.pause_first);
        hook(ReconnectEvent::Lost);
        loop {
            attempts = attempts.saturating_add(1);
            let Err(error) = attempt() else {
                hook(ReconnectEvent::Resumed { attempts });
                return Ok(());
            };
            hook(ReconnectEvent::AttemptFailed { attempts, error: &error });
            if !is_transient(&error) || lost.elapsed() + pause > self.give_up_after {
                return Err(error);
            }
            std::thread::sleep(pause); // tidy: allow sleep, the pause between attempts is what the caller asked for
            pause = (pause * 2).min(self.pause_max);
        }
    }
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self::within(Duration::from_secs(60))
    }
}
