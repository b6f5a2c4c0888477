//! What the client of a port is notified of: at most one event is on its way, and the newest state follows it.

use crate::frame::Mac;
use crate::wire::{Event, PortInfo, Status};

/// What a port is like, as far as an administrator changes it while a client is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortState {
    pub(super) down: bool,
    pub(super) mtu: u16,
    pub(super) mac: Mac,
}

impl PortState {
    /// What a client takes a port for before the first event.
    pub(super) const fn attached(info: &PortInfo) -> Self {
        Self { down: false, mtu: info.mtu, mac: Mac(info.mac) }
    }

    fn write(&self) -> String {
        format!("{} {} {}", u8::from(self.down), self.mtu, self.mac)
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(Self { down: flag(words.next()?)?, mtu: words.next()?.parse().ok()?, mac: words.next()?.parse().ok()? })
    }
}

fn flag(word: &str) -> Option<bool> {
    match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Of one receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    /// The client asked for them.
    taken: bool,
    /// The client has not acknowledged the last.
    on_its_way: bool,
    now: PortState,
    /// What was reported last.
    reported: PortState,
}

impl Events {
    /// Of a client that was sent this when it attached.
    pub(super) const fn new(taken: bool, attached: PortState) -> Self {
        Self { taken, on_its_way: false, now: attached, reported: attached }
    }

    /// `true`: an event is to be sent now, and was counted as sent.
    pub(super) fn set(&mut self, now: PortState) -> bool {
        self.now = now;
        let is_due = self.taken && !self.on_its_way && self.now != self.reported;
        if is_due {
            (self.reported, self.on_its_way) = (now, true);
        }
        is_due
    }

    /// As [`set`](Self::set), once the client has acknowledged the last.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn acknowledge(&mut self) -> Result<bool, Status> {
        if !std::mem::take(&mut self.on_its_way) {
            return Err(Status::Invalid);
        }
        Ok(self.set(self.now))
    }

    /// What reports the state of now.
    pub(super) const fn event(&self) -> Event {
        Event::new(!self.now.down, self.now.mac, self.now.mtu)
    }

    pub(super) const fn state(&self) -> PortState {
        self.now
    }

    /// For another process, as it [reads](Self::read) it.
    pub(super) fn write(&self) -> String {
        let Self { taken, on_its_way, now, reported } = self;
        format!("{} {} {} {}", u8::from(*taken), u8::from(*on_its_way), now.write(), reported.write())
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let words = &mut text.split(' ');
        let (taken, on_its_way) = (flag(words.next()?)?, flag(words.next()?)?);
        let events = Self { taken, on_its_way, now: PortState::read(words)?, reported: PortState::read(words)? };
        words.next().is_none().then_some(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: PortState = PortState { down: false, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 1]) };
    const DOWN: PortState = PortState { down: true, ..UP };

    #[test]
    fn one_event_at_a_time_and_the_newest_state_follows() {
        let mut events = Events::new(true, UP);
        assert!(!events.set(UP), "as it was");
        assert!(events.set(DOWN));
        assert!(!events.set(UP) && !events.set(DOWN) && !events.set(UP), "one is on its way");
        assert_eq!(events.acknowledge(), Ok(true), "the state is another now");
        assert!(!events.set(DOWN) && !events.set(UP));
        assert_eq!((events.acknowledge(), events.acknowledge()), (Ok(false), Err(Status::Invalid)));
        for changed in [DOWN, PortState { mtu: 1400, ..UP }, PortState { mac: Mac([2, 0, 0, 0, 0, 2]), ..UP }] {
            assert!(events.set(changed));
            assert_eq!((events.event().link, events.event().mtu), (u8::from(!changed.down), changed.mtu));
            let saved = events.write();
            assert_eq!(Events::read(&saved), Some(events));
            for wrong in ["", "1101", &saved[1..], &format!("{saved} 1"), &saved.replace(':', "-"), &format!("2{}", &saved[1..])]
            {
                assert_eq!(Events::read(wrong), None, "{wrong}");
            }
            assert_eq!((events.acknowledge(), events.set(UP), events.acknowledge()), (Ok(false), true, Ok(false)));
        }
    }

    #[test]
    fn client_that_did_not_ask_gets_none() {
        let mut events = Events::new(false, UP);
        assert!(!events.set(DOWN) && !events.set(UP));
        assert_eq!(events.acknowledge(), Err(Status::Invalid));
    }
}
