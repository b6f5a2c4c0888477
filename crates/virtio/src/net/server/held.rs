//! Interrupts for frames that were sent, which are held back for a moment: the driver only gets its buffers back, and takes them by itself
//! when a frame comes or when it sends more. Ticks in, decisions out.

use std::time::Duration;

use fipsee_ring::clock;

/// How long an interrupt is held back at most: less than a sender waits for anything else.
const MOST: Duration = Duration::from_micros(50);
/// The same for fewer than [`FEW`] descriptors. A sender that has that little in flight waits for an answer, rather than for its buffers: an interrupt
/// before the answer would delay it, and the answer makes it superfluous.
const MOST_OF_FEW: Duration = Duration::from_micros(250);
const FEW: usize = 8;

/// The interrupt of one virtqueue.
#[derive(Debug)]
pub(super) struct HeldInterrupt {
    most_ticks: u64,
    most_ticks_of_few: u64,
    /// A driver that got back fewer has enough left.
    most_descriptors: usize,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    /// What was published from this position on.
    since: u16,
    descriptors: usize,
    begun_ticks: u64,
}

impl HeldInterrupt {
    /// Of a queue of so many descriptors.
    pub(super) fn new(size: u16) -> Self {
        let [most_ticks, most_ticks_of_few] = [MOST, MOST_OF_FEW].map(clock::duration_to_ticks);
        Self { most_ticks, most_ticks_of_few, most_descriptors: usize::from(size / 2), held: None }
    }

    /// Chains with so many descriptors were published, from the position `from` on. Returns the position from which on the driver was
    /// not interrupted.
    pub(super) fn add(&mut self, from: u16, descriptors: usize, now_ticks: u64) -> u16 {
        let held = self.held.get_or_insert(Held { since: from, descriptors: 0, begun_ticks: now_ticks });
        held.descriptors += descriptors;
        held.since
    }

    /// Must the driver be interrupted now, if it wants that?
    pub(super) fn is_due(&self, now_ticks: u64) -> bool {
        let has_many = self.held.as_ref().is_some_and(|held| held.descriptors >= self.most_descriptors);
        has_many || self.due().is_some_and(|due_ticks| now_ticks >= due_ticks)
    }

    pub(super) fn due(&self) -> Option<u64> {
        let held = self.held.as_ref()?;
        let most_ticks = if held.descriptors < FEW { self.most_ticks_of_few } else { self.most_ticks };
        Some(held.begun_ticks.saturating_add(most_ticks))
    }

    /// Before more is published: a driver that has found all of it by itself is not interrupted early for what comes now.
    pub(super) fn end_unless(&mut self, is_wanted: impl FnOnce(u16) -> bool) {
        self.held.take_if(|held| !is_wanted(held.since));
    }

    /// It was interrupted, or finds them by itself. Returns the position from which on it was not.
    pub(super) fn end(&mut self) -> Option<u16> {
        self.held.take().map(|held| held.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_waits_for_time_or_half_of_the_descriptors_and_covers_all_since() {
        let mut interrupt = HeldInterrupt::new(256);
        let most_ticks = interrupt.most_ticks;
        assert!(most_ticks > 10 && interrupt.due().is_none() && !interrupt.is_due(u64::MAX), "there is nothing");
        assert_eq!(interrupt.add(65535, 20, 1000), 65535);
        assert_eq!(interrupt.add(1, 20, 1010), 65535, "one interrupt for all");
        assert_eq!(interrupt.due(), Some(1000 + most_ticks), "the first does not wait longer for the second");
        assert!(!interrupt.is_due(999 + most_ticks) && interrupt.is_due(1000 + most_ticks));
        assert_eq!((interrupt.end(), interrupt.end(), interrupt.due()), (Some(65535), None, None));
        assert_eq!(interrupt.add(7, 127, 2000), 7);
        assert!(!interrupt.is_due(2000));
        interrupt.add(9, 1, 2000);
        assert!(interrupt.is_due(2000), "the driver may need them");
    }

    #[test]
    fn few_frames_wait_longer_until_there_are_more() {
        let mut interrupt = HeldInterrupt::new(256);
        let [most_ticks, most_ticks_of_few] = [interrupt.most_ticks, interrupt.most_ticks_of_few];
        interrupt.add(1, FEW - 1, 1000);
        assert_eq!(interrupt.due(), Some(1000 + most_ticks_of_few));
        assert!(!interrupt.is_due(1000 + most_ticks) && interrupt.is_due(1000 + most_ticks_of_few));
        interrupt.add(8, 1, 1001 + most_ticks);
        assert!(interrupt.is_due(1001 + most_ticks), "the first has waited long enough for one of several");
    }

    #[test]
    fn what_the_driver_has_found_by_itself_makes_no_later_interrupt_due() {
        let mut interrupt = HeldInterrupt::new(256);
        let most_ticks = interrupt.most_ticks;
        interrupt.end_unless(|_| unreachable!("nothing is held back"));
        interrupt.add(3, 100, 1000);
        interrupt.end_unless(|since| since == 3);
        assert_eq!(interrupt.due(), Some(1000 + most_ticks), "it is still wanted");
        interrupt.end_unless(|since| since != 3);
        assert_eq!(interrupt.add(4, 100, 1001), 4);
        assert!(!interrupt.is_due(1000 + most_ticks), "neither by time nor by number");
        assert_eq!(interrupt.due(), Some(1001 + most_ticks));
    }
}
