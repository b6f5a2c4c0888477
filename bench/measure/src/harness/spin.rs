//! Waiting without sleeping.

use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, WaitMode, Watch};
use fipsee_ring::{AtomicU32, Ordering};

use super::drive::PeerError;
use super::plan::HotPathOptions;

/// Empty polls between two yields: far more than a round trip takes, so that a measurement never sees one unless the
/// two sides share a CPU.
const LOOKS_PER_YIELD: u32 = 4096;
/// Yields between two checks whether the other side is alive.
const YIELDS_PER_LIFE_CHECK: u32 = 16;

/// Between two empty polls.
pub(super) struct Spin<'a> {
    pause: bool,
    /// Every empty poll takes the slow path: the two sides share one CPU, or the wait mode does not spin.
    always_slow: bool,
    /// That wait mode.
    backoff: Option<Backoff>,
    looks: u32,
    other: &'a Seqpacket,
}

impl<'a> Spin<'a> {
    pub(super) const fn new(options: &HotPathOptions, other: &'a Seqpacket) -> Self {
        Self { pause: options.pause, always_slow: options.one_cpu, backoff: None, looks: 0, other }
    }

    /// Wait as in `options` if the report's ring is to do so; it never sleeps, because it has no doorbell.
    pub(super) fn waiting(options: &HotPathOptions, other: &'a Seqpacket) -> Self {
        let spin = Self::new(options, other);
        match options.wait {
            _ if !options.classic_waits => spin,
            WaitMode::Pause | WaitMode::Adaptive | WaitMode::Sleep => Self { pause: true, ..spin },
            WaitMode::Spin => Self { pause: false, ..spin },
            mode => Self { always_slow: true, backoff: Some(Backoff::new(mode, DEFAULT_LOOK)), ..spin },
        }
    }

    #[inline(always)]
    pub(super) const fn reset(&mut self) {
        self.looks = 0;
    }

    #[inline(always)]
    pub(super) fn step(&mut self) -> Result<(), PeerError> {
        self.step_at(None)
    }

    /// As [`step`](Self::step), for a caller that knows which word will be written.
    #[inline(always)]
    fn step_at(&mut self, watch: Option<Watch<'_>>) -> Result<(), PeerError> {
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_PER_YIELD) || self.always_slow {
            return self.step_slowly(watch);
        }
        if self.pause {
            core::hint::spin_loop();
        }
        Ok(())
    }

    #[cold]
    fn step_slowly(&mut self, watch: Option<Watch<'_>>) -> Result<(), PeerError> {
        match &mut self.backoff {
            Some(backoff) => {
                backoff.step_watching(true, || watch);
            }
            None => std::thread::yield_now(),
        }
        if self.looks >= LOOKS_PER_YIELD * YIELDS_PER_LIFE_CHECK {
            self.looks = 0;
            if self.other.is_hung_up() {
                return Err(PeerError::Gone);
            }
        }
        Ok(())
    }

    /// Poll until `word` is `value`.
    #[inline(always)]
    pub(super) fn until_is(&mut self, word: &AtomicU32, value: u32) -> Result<(), PeerError> {
        while word.load(Ordering::Acquire) != value {
            self.step_at(Some(Watch::new(word, value)))?;
        }
        self.reset();
        Ok(())
    }

    /// Poll until `found`.
    #[inline(always)]
    pub(super) fn until(&mut self, mut found: impl FnMut() -> bool) -> Result<(), PeerError> {
        while !found() {
            self.step()?;
        }
        self.reset();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::super::plan::{Design, Spec};
    use super::*;

    fn any_spec() -> Spec {
        Spec { design: Design::Classic, one_cpu: true, ..Spec::default() }
    }

    #[test]
    fn the_reports_ring_waits_in_another_way_only_when_the_plan_says_so_for_both_sides() {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let other = Seqpacket::from_fd(pair.expect("a pair").0);
        for mode in WaitMode::ALL {
            let spec = |answerer: Option<&str>| Spec {
                wait: mode.name().to_owned(),
                answerer_wait: answerer.map(str::to_owned),
                one_cpu: false,
                ..any_spec()
            };
            let spin = |answerer| Spin::waiting(&spec(answerer).options().expect("a known mode"), &other);
            let plain = spin(None);
            assert!(plain.pause && !plain.always_slow && plain.backoff.is_none(), "{mode}");
            let chosen = spin(Some("pause"));
            assert_eq!(chosen.always_slow, chosen.backoff.is_some(), "{mode}");
            assert_eq!(
                chosen.backoff.is_none(),
                !matches!(mode, WaitMode::Yield | WaitMode::Umwait | WaitMode::Tpause | WaitMode::Monitorx)
            );
            assert_eq!(chosen.pause, mode != WaitMode::Spin, "{mode}");
        }
    }

    #[test]
    fn a_word_is_waited_for_in_every_way_until_it_is_written() {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, _theirs) = pair.expect("a pair");
        let other = Seqpacket::from_fd(ours);
        for mode in WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok()) {
            let chosen = Some("pause".to_owned());
            let spec = Spec { wait: mode.name().to_owned(), answerer_wait: chosen, ..any_spec() };
            let options = spec.options().expect("a known mode");
            let word = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| word.store(7, Ordering::Release));
                assert_eq!(Spin::waiting(&options, &other).until_is(&word, 7), Ok(()), "{mode}");
            });
        }
    }
}
