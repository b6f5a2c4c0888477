//! Limits of requests and bytes per second, shared by the queues of any number of workers.
//!
//! A limit is a bucket of tokens, kept as one time: when it will be full again (GCRA). A visit takes no more than the tokens that are there,
//! except that it may always finish a request that it has begun: what that costs more is owed, and nothing is taken until it is paid.
//! Workers look before a visit and charge after it; of several that visit at the same time each may take what is there, and all of it is
//! charged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_ring::clock;

use crate::share::{Taken, UNITS_PER_REQUEST};
use crate::turns::Turns;

/// Without another one: half a percent of what is taken in a second.
const USUAL_BURST: Duration = Duration::from_millis(5);
const MAX_BURST: Duration = Duration::from_secs(60);
const MAX_IOPS: u64 = 1_000_000_000;
const MAX_BYTES_PER_SECOND: u64 = 1_000_000_000_000_000;
const BLOCK_BYTES: u64 = 512;
/// A queue whose tokens are used up is visited again when this part of the burst is there: not for each request. Of a long burst, when as
/// much of the usual one is there, or one token.
const RESUMED_AT: u64 = 16;
/// So long a worker lets others go first, which must wake up; but no longer than for this part of the burst, of which nothing is lost.
const YIELDS: Duration = Duration::from_millis(1);
const YIELDS_AT_MOST: u64 = 4;

/// What a limit permits; the default is everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    iops: Option<u64>,
    bytes_per_second: Option<u64>,
    burst: Option<Duration>,
}

impl Rates {
    pub const UNLIMITED: Self = Self { iops: None, bytes_per_second: None, burst: None };

    /// `burst`: for how long unused tokens are kept, 5 ms unless it is given.
    ///
    /// # Errors
    /// In words: a limit of 0 or above what can be counted; a burst without a limit, of 0, or of more than a minute.
    pub fn new(iops: Option<u64>, bytes_per_second: Option<u64>, burst: Option<Duration>) -> Result<Self, String> {
        let checked = |name: &str, value: Option<u64>, max: u64| match value {
            Some(0) => Err(format!("{name} = 0 would let nothing through; leave it out for no limit, or write 1 or more")),
            Some(value) if value > max => {
                Err(format!("{name} = {value} is more than {max}, the most that can be counted; leave it out for no limit"))
            }
            _ => Ok(()),
        };
        checked("iops", iops, MAX_IOPS)?;
        checked("bytes_per_second", bytes_per_second, MAX_BYTES_PER_SECOND)?;
        match burst {
            Some(_) if iops.is_none() && bytes_per_second.is_none() => {
                Err("burst says for how long an unused limit is kept, and there is none; add iops or bytes_per_second".to_owned())
            }
            Some(Duration::ZERO) => Err("burst = 0 would let nothing through; leave it out for 5 ms".to_owned()),
            Some(burst) if burst > MAX_BURST => Err(format!("burst is {burst:?}; write at most {MAX_BURST:?}")),
            burst => Ok(Self { iops, bytes_per_second, burst }),
        }
    }

    pub const fn iops(&self) -> Option<u64> {
        self.iops
    }

    pub const fn bytes_per_second(&self) -> Option<u64> {
        self.bytes_per_second
    }

    /// As it was given.
    pub const fn burst(&self) -> Option<Duration> {
        self.burst
    }
}

/// Tokens of one kind.
#[derive(Debug, Default)]
struct Bucket {
    /// 0: there is no limit.
    per_second: AtomicU64,
    /// When it will be full, if nothing is taken.
    full_at: AtomicU64,
}

/// `value * by / of`, rounded up.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(by)).div_ceil(u128::from(of.max(1)))).unwrap_or(u64::MAX)
}

impl Bucket {
    /// Tokens that are there, at least 1; or from when on there are some.
    fn tokens(&self, now: u64, burst: u64) -> Result<u64, u64> {
        let per_second = self.per_second.load(Ordering::Relaxed);
        if per_second == 0 {
            return Ok(u64::MAX);
        }
        let full_at = self.full_at.load(Ordering::Relaxed);
        match burst.checked_sub(full_at.saturating_sub(now)) {
            None | Some(0) => Err(self.resumes_at(burst)),
            Some(filled) => Ok(scale(filled, per_second, clock::ticks_per_second())),
        }
    }

    /// When those that waited for tokens look again.
    fn resumes_at(&self, burst: u64) -> u64 {
        let per_second = self.per_second.load(Ordering::Relaxed);
        if per_second == 0 {
            return 0;
        }
        let most = (clock::duration_to_ticks(USUAL_BURST) / RESUMED_AT).max(clock::ticks_per_second() / per_second);
        let empty_at = self.full_at.load(Ordering::Relaxed).saturating_sub(burst);
        empty_at.saturating_add((burst / RESUMED_AT).min(most).max(1))
    }

    /// For how long that uses the bucket up, in ticks.
    fn charge(&self, now: u64, tokens: u64) -> u64 {
        let per_second = self.per_second.load(Ordering::Relaxed);
        if per_second == 0 || tokens == 0 {
            return 0;
        }
        let cost = scale(tokens, clock::ticks_per_second(), per_second);
        let later = |full_at: u64| Some(full_at.max(now).saturating_add(cost));
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        cost
    }

    /// What is owed stays owed, in tokens.
    fn set(&self, now: u64, per_second: u64) {
        let before = self.per_second.swap(per_second, Ordering::Relaxed);
        if before != per_second {
            let scaled = |full_at: u64| match (before, per_second) {
                (0, _) | (_, 0) => Some(now),
                _ => Some(now.saturating_add(scale(full_at.saturating_sub(now), before, per_second))),
            };
            let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, scaled);
        }
    }
}

/// A limit that any number of queues have together.
#[derive(Debug, Default)]
pub struct Limiter {
    requests: Bucket,
    bytes: Bucket,
    burst_ticks: AtomicU64,
    throttled: AtomicU64,
    turns: Turns,
}

impl Limiter {
    /// From the next visit on. Workers must be notified ([`Command::LimitsChanged`](crate::Command::LimitsChanged)): they look at no limiter
    /// that had no limit, and at none before the time that it named.
    pub fn set(&self, rates: Rates) {
        self.set_at(clock::ticks(), rates);
    }

    fn set_at(&self, now: u64, Rates { iops, bytes_per_second, burst }: Rates) {
        self.burst_ticks.store(clock::duration_to_ticks(burst.unwrap_or(USUAL_BURST)), Ordering::Relaxed);
        self.requests.set(now, iops.unwrap_or(0));
        self.bytes.set(now, bytes_per_second.unwrap_or(0));
    }

    /// How often a queue had to wait for it.
    pub fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    pub fn is_limited(&self) -> bool {
        [&self.requests, &self.bytes].iter().any(|bucket| bucket.per_second.load(Ordering::Relaxed) > 0)
    }

    /// A queue with a request begins to wait.
    pub(crate) fn count_if_used_up(&self, now: u64) {
        if self.allows(now).is_err() {
            self.throttled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests and cost units that a visit may take; or from when on it may take some.
    pub(crate) fn allows(&self, now: u64) -> Result<(u32, u32), u64> {
        let burst = self.burst_ticks.load(Ordering::Relaxed);
        let (requests, bytes) = match (self.requests.tokens(now, burst), self.bytes.tokens(now, burst)) {
            (Ok(requests), Ok(bytes)) => (requests, bytes),
            (requests, bytes) => return Err(requests.err().max(bytes.err()).unwrap_or(now)),
        };
        let most = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Ok((most(requests), most((bytes / BLOCK_BYTES).saturating_add(UNITS_PER_REQUEST.into()))))
    }

    /// Has all been paid, and is nothing lost if this one is forgotten?
    pub(crate) fn is_as_new(&self, now: u64) -> bool {
        let is_full =
            |bucket: &Bucket| bucket.per_second.load(Ordering::Relaxed) == 0 || bucket.full_at.load(Ordering::Relaxed) <= now;
        is_full(&self.requests) && is_full(&self.bytes)
    }

    /// A queue of this worker has a request: does it wait for this limit?
    pub(crate) fn waits(&self, now: u64, worker: u32) {
        if self.yields(now, worker).is_err() || self.allows(now).is_err() {
            self.turns.waits(worker);
        }
    }

    /// By how much of the limit a worker may be ahead of another that waits, and for how long it then lets that go first.
    fn lead_ticks(&self) -> u64 {
        clock::duration_to_ticks(YIELDS).min(self.burst_ticks.load(Ordering::Relaxed) / YIELDS_AT_MOST)
    }

    /// Until when other workers go first, which have had less.
    pub(crate) fn yields(&self, now: u64, worker: u32) -> Result<(), u64> {
        let lead = self.lead_ticks();
        if !self.turns.yields(worker, lead) {
            return Ok(());
        }
        let burst = self.burst_ticks.load(Ordering::Relaxed);
        let until = self.requests.resumes_at(burst).max(self.bytes.resumes_at(burst)).saturating_add(lead);
        if now < until { Err(until) } else { Ok(()) }
    }

    /// A queue of this worker was served.
    pub(crate) fn served(&self, now: u64, worker: u32, taken: Taken) {
        let cost = self.charge(now, taken);
        if taken.requests > 0 {
            self.turns.served(worker, cost, self.lead_ticks());
        }
    }

    /// For how long that uses the limit up.
    fn charge(&self, now: u64, Taken { requests, units, work_units }: Taken) -> u64 {
        let blocks = units.saturating_sub(work_units).saturating_sub(requests.saturating_mul(UNITS_PER_REQUEST));
        let of_requests = self.requests.charge(now, requests.into());
        of_requests.max(self.bytes.charge(now, u64::from(blocks) * BLOCK_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pseudo-random number below `end`.
    fn below(state: &mut u64, end: u64) -> u64 {
        *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (*state >> 33) % end
    }

    fn rates(iops: Option<u64>, bytes_per_second: Option<u64>, burst: Option<Duration>) -> Rates {
        Rates::new(iops, bytes_per_second, burst).expect("a limit")
    }

    fn limiter(rates: Rates) -> Limiter {
        let limiter = Limiter::default();
        limiter.set_at(0, rates);
        limiter
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Visits of several queues under backlog, each as soon as it may; what was taken, and when.
    fn backlog(limiter: &Limiter, request_bytes: u64, until: u64, seed: u64) -> Vec<(u64, u64)> {
        let (mut now, mut random, mut all) = (0, seed, Vec::new());
        let blocks = u32::try_from(request_bytes / BLOCK_BYTES).expect("few");
        while now < until {
            match limiter.allows(now) {
                Err(later) => now = later.max(now + 1),
                Ok((requests, units)) => {
                    let mut taken = Taken::NOTHING;
                    while taken.requests < requests.min(14) && taken.units < units {
                        taken = taken.and(Taken::new(1, blocks.into()));
                    }
                    limiter.charge(now, taken);
                    all.push((now, u64::from(taken.requests)));
                    // The visit, and those to others.
                    now += below(&mut random, clock::duration_to_ticks(Duration::from_micros(50)));
                }
            }
        }
        all
    }

    #[test]
    fn in_every_second_the_limit_is_used_and_never_exceeded_by_more_than_the_burst_and_a_request() {
        let second = clock::duration_to_ticks(SECOND);
        let cases = [
            (Some(100), None, 4096),
            (Some(1000), None, 512),
            (Some(123_457), None, 4096),
            (None, Some(100_000_000), 4096),
            (None, Some(100_000_000), 1 << 20),
            (None, Some(3_000_000_000), 1 << 16),
            (Some(5000), Some(50_000_000), 8192),
        ];
        for (seed, (iops, bytes, request_bytes)) in (1..).zip(cases) {
            let all = backlog(&limiter(rates(iops, bytes, None)), request_bytes, 4 * second, seed);
            let requests = iops.into_iter().chain(bytes.map(|bytes| bytes.div_ceil(request_bytes))).min().expect("one");
            let burst = requests.div_ceil(200);
            for window in 0..30 {
                let from = window * second / 10;
                let taken: u64 =
                    all.iter().filter(|(at, _)| (from..from + second).contains(at)).map(|(_, requests)| requests).sum();
                assert!(taken <= requests + burst + 1, "{iops:?} {bytes:?}: {taken} of {requests}");
                assert!((taken + 1) * 100 >= requests * 98, "{iops:?} {bytes:?}: {taken} of {requests}");
            }
        }
    }

    #[test]
    fn request_longer_than_the_burst_gets_through_and_is_paid() {
        let limiter = limiter(rates(None, Some(1 << 20), None));
        assert!(limiter.allows(0).is_ok());
        limiter.charge(0, Taken::new(1, 32 << 11));
        let later = limiter.allows(0).expect_err("32 s of it are owed");
        let seconds = later.div_ceil(clock::duration_to_ticks(SECOND));
        assert_eq!(seconds, 32);
        assert!(limiter.allows(later).is_ok());
    }

    #[test]
    fn long_burst_does_not_make_a_wait_longer_than_for_one_token() {
        let second = clock::duration_to_ticks(SECOND);
        let usual = clock::duration_to_ticks(USUAL_BURST) / RESUMED_AT;
        for (iops, burst, expected) in [
            (1, 60 * SECOND, second),
            (1000, 60 * SECOND, second / 1000),
            (1_000_000, SECOND, usual),
            (1_000_000, USUAL_BURST, usual),
            (1000, USUAL_BURST, usual),
        ] {
            let limiter = limiter(rates(Some(iops), None, Some(burst)));
            let all = u32::try_from(u128::from(iops) * burst.as_nanos() / 1_000_000_000).expect("few");
            limiter.charge(0, Taken::new(all, 0));
            let until = limiter.allows(0).expect_err("all is used");
            assert!(until.abs_diff(expected) <= 2, "{iops} {burst:?}: {until} instead of {expected}");
            assert!(limiter.allows(until).is_ok());
        }
    }

    #[test]
    fn a_thousand_changes_a_second_give_nothing_away() {
        let (second, limiter) = (clock::duration_to_ticks(SECOND), limiter(rates(Some(1000), None, None)));
        let mut taken = 0;
        for change in 0..4000 {
            let now = change * second / 1000;
            limiter.set_at(now, rates(Some(if change % 2 == 0 { 1000 } else { 2000 }), None, None));
            while let Ok((requests, _)) = limiter.allows(now) {
                limiter.charge(now, Taken::new(requests.min(14), 0));
                taken += u64::from(requests.min(14));
            }
        }
        assert!((5800..=6200).contains(&taken), "{taken} in 4 s at 1000 and 2000 by turns");
    }

    #[test]
    fn debt_at_a_low_rate_is_little_at_a_high_one() {
        let (second, limiter) = (clock::duration_to_ticks(SECOND), limiter(rates(Some(1), None, None)));
        limiter.charge(0, Taken::new(1000, 0));
        assert!(limiter.allows(900 * second).is_err());
        limiter.set_at(0, rates(Some(1_000_000), None, None));
        assert!(limiter.allows(second / 500).is_ok());
        limiter.set_at(0, Rates::UNLIMITED);
        assert_eq!(limiter.allows(0), Ok((u32::MAX, u32::MAX)));
        assert!(!limiter.is_limited());
    }

    #[test]
    fn what_cannot_be_a_limit_is_refused_with_what_to_write() {
        for (iops, bytes, burst, text) in [
            (Some(0), None, None, "iops = 0 would let nothing through"),
            (Some(1), Some(0), None, "bytes_per_second = 0 would let nothing through"),
            (Some(u64::MAX), None, None, "the most that can be counted"),
            (None, Some(u64::MAX), None, "the most that can be counted"),
            (None, None, Some(SECOND), "there is none; add iops or bytes_per_second"),
            (Some(1), None, Some(Duration::ZERO), "leave it out for 5 ms"),
            (Some(1), None, Some(Duration::from_secs(61)), "write at most 60s"),
        ] {
            let error = Rates::new(iops, bytes, burst).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
        let all = rates(Some(1), Some(2), Some(SECOND));
        assert_eq!((all.iops(), all.bytes_per_second(), all.burst()), (Some(1), Some(2), Some(SECOND)));
    }

    #[test]
    fn work_that_moves_no_bytes_is_none_of_the_limit() {
        let of = |taken| limiter(rates(Some(1000), Some(1_000_000), None)).charge(0, taken);
        let plain = Taken::new(3, 20);
        assert_eq!(of(plain.with_more_work(500)), of(plain));
        assert!(of(Taken::new(3, 4020)) > of(plain), "bytes are");
    }
}
