//! One more client: it wants exclusive use of the disk, or says nothing.

use std::os::fd::OwnedFd;

use fipsee_block::wire::{FEATURE_SOLE_WRITER, SERVICE_BLOCK};
use fipsee_ring::control::{Control, Wanted};

use super::claims::Terms;
use crate::context::Context;
use crate::link::{Down, Link, Up};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Away,
    Waiting,
    Attaching,
    Detaching,
    Ended,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Attach, be refused or detach.
    Attach,
    /// Say nothing after connecting.
    Silent,
    /// Attach and hang up.
    HangUp,
}

/// One more client.
pub(crate) struct SecondClient {
    pub(crate) link: usize,
    pub(crate) stage: Stage,
    visit: Visit,
    /// It got what it asked for.
    pub(crate) was_attached: bool,
    channel: Vec<OwnedFd>,
}

impl SecondClient {
    /// As what it attaches.
    pub(crate) const TERMS: Terms = Terms { exclusive: true, reads_only: false, claims: true, forces: false };

    /// Not connected yet.
    pub(crate) const fn new(visit: Visit, link: usize) -> Self {
        Self { link, stage: Stage::Away, visit, was_attached: false, channel: Vec::new() }
    }

    /// May it be scheduled?
    pub(crate) fn may_run(&self, link: &Link) -> bool {
        self.stage == Stage::Away || self.stage != Stage::Ended && !link.down.is_empty()
    }

    /// One step.
    pub(crate) fn run(&mut self, context: &Context, link: &mut Link) {
        if self.stage == Stage::Away {
            context.say(|| format!("second client: connects ({:?})", self.visit));
            match self.visit {
                Visit::Silent => link.up.push_back(Up::Connect(0)),
                _ => link.greet(0, FEATURE_SOLE_WRITER),
            }
            self.stage = Stage::Waiting;
            return;
        }
        let Some(down) = link.down.pop_front() else { return };
        context.say(|| match &down {
            Down::Packet(message, _) => format!("second client: takes {message:?}"),
            Down::Closed => "second client: its connection is closed".to_owned(),
        });
        match down {
            Down::Packet(Control::Welcome { .. }, _) => {
                let (flags, name) = (Self::TERMS.flags(), "disk".to_owned());
                link.send(&Control::Attach(Wanted {
                    service: SERVICE_BLOCK,
                    queue_count: 1,
                    depth: 4,
                    flags,
                    pool_bytes: 0,
                    name,
                }));
                self.stage = Stage::Attaching;
            }
            Down::Packet(Control::Attached { .. }, files) => {
                (self.channel, self.was_attached) = (files, true);
                if self.visit == Visit::HangUp {
                    link.up.push_back(Up::Gone);
                    self.end();
                } else {
                    link.send(&Control::Detach);
                    self.stage = Stage::Detaching;
                }
            }
            Down::Packet(..) => {}
            Down::Closed => self.end(),
        }
    }

    fn end(&mut self) {
        self.channel.clear();
        self.stage = Stage::Ended;
    }
}
