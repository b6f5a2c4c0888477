//! A second client: it wants the disk for itself, or says nothing.

use std::os::fd::OwnedFd;

use fipsee_block::wire::{ATTACH_EXCLUSIVE, ATTACH_SOLE_WRITER, FEATURE_SOLE_WRITER, SERVICE_BLOCK};
use fipsee_ring::control::{Control, VERSION};

use crate::context::Context;
use crate::daemon::{Down, Link, Up};

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

/// A second client.
pub(crate) struct Visitor {
    pub(crate) link: usize,
    pub(crate) stage: Stage,
    visit: Visit,
    /// It got what it asked for.
    pub(crate) was_attached: bool,
    channel: Vec<OwnedFd>,
}

impl Visitor {
    /// Not connected yet.
    #[must_use]
    pub(crate) const fn new(visit: Visit, link: usize) -> Self {
        Self { link, stage: Stage::Away, visit, was_attached: false, channel: Vec::new() }
    }

    /// May it be scheduled?
    #[must_use]
    pub(crate) fn may_run(&self, link: &Link) -> bool {
        self.stage == Stage::Away || self.stage != Stage::Ended && !link.down.is_empty()
    }

    /// One step.
    pub(crate) fn run(&mut self, context: &Context, link: &mut Link) {
        let send = |link: &mut Link, message: Control| link.up.push_back(Up::Packet(message.encode(), Vec::new()));
        if self.stage == Stage::Away {
            context.say(|| format!("visitor: connects ({:?})", self.visit));
            link.up.push_back(Up::Connect);
            if self.visit != Visit::Silent {
                send(link, Control::Hello { version_min: VERSION, version_max: VERSION, features: FEATURE_SOLE_WRITER });
            }
            self.stage = Stage::Waiting;
            return;
        }
        let Some(down) = link.down.pop_front() else { return };
        context.say(|| match &down {
            Down::Packet(message, _) => format!("visitor: takes {message:?}"),
            Down::Closed => "visitor: its connection is closed".to_owned(),
        });
        match down {
            Down::Packet(Control::Welcome { .. }, _) => {
                let (flags, name) = (ATTACH_EXCLUSIVE | ATTACH_SOLE_WRITER, "disk".to_owned());
                send(link, Control::Attach { service: SERVICE_BLOCK, queue_count: 1, depth: 4, flags, pool_bytes: 0, name });
                self.stage = Stage::Attaching;
            }
            Down::Packet(Control::Attached { .. }, files) => {
                (self.channel, self.was_attached) = (files, true);
                if self.visit == Visit::HangUp {
                    link.up.push_back(Up::HangUp);
                    self.end();
                } else {
                    send(link, Control::Detach);
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
