//! What the client of a port is notified of: at most one event is on its way, and the newest state follows it.

use crate::wire::Status;

/// Of one receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    /// The client asked for them.
    taken: bool,
    /// The client has not acknowledged the last.
    on_its_way: bool,
    /// Is the port down, and what was reported last?
    down: bool,
    reported_down: bool,
}

impl Events {
    pub(super) fn new(taken: bool) -> Self {
        Self { taken, ..Self::default() }
    }

    /// `true`: an event is to be sent now, and was counted as sent.
    pub(super) fn set(&mut self, down: bool) -> bool {
        self.down = down;
        let is_due = self.taken && !self.on_its_way && self.down != self.reported_down;
        if is_due {
            (self.reported_down, self.on_its_way) = (down, true);
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
        Ok(self.set(self.down))
    }

    pub(super) const fn is_up(&self) -> bool {
        !self.down
    }

    /// For another process, as it [reads](Self::read) it.
    pub(super) fn write(&self) -> String {
        let Self { taken, on_its_way, down, reported_down } = *self;
        [taken, on_its_way, down, reported_down].map(|set| if set { '1' } else { '0' }).into_iter().collect()
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let set = |digit| match digit {
            b'0' => Some(false),
            b'1' => Some(true),
            _ => None,
        };
        let [taken, on_its_way, down, reported_down] = *<&[u8; 4]>::try_from(text.as_bytes()).ok()?;
        Some(Self { taken: set(taken)?, on_its_way: set(on_its_way)?, down: set(down)?, reported_down: set(reported_down)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_at_a_time_and_the_newest_state_follows() {
        let mut events = Events::new(true);
        assert!(!events.set(false), "as it was");
        assert!(events.set(true));
        assert!(!events.set(false) && !events.set(true) && !events.set(false), "one is on its way");
        assert_eq!(events.acknowledge(), Ok(true), "the state is another now");
        assert!(!events.set(true) && !events.set(false));
        assert_eq!((events.acknowledge(), events.acknowledge()), (Ok(false), Err(Status::Invalid)));
        assert!(events.set(true));
        let saved = events.write();
        assert_eq!((Events::read(&saved), Events::read("11"), Events::read("1112")), (Some(events), None, None));
    }

    #[test]
    fn client_that_did_not_ask_gets_none() {
        let mut events = Events::new(false);
        assert!(!events.set(true) && !events.set(false));
        assert_eq!(events.acknowledge(), Err(Status::Invalid));
    }
}
