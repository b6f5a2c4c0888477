//! The new daemon's side: it serves once `Taken` is sent, or cannot be sent because the old one is gone and has not refused.

use std::mem::replace;
use std::time::Duration;

use super::{Answer, LineError, PREPARE_TIMEOUT, PacketKind, TAKE_TIMEOUT};

#[derive(Debug, PartialEq, Eq)]
pub enum TakingStep {
    /// Report what is received within this time, or what prevents that.
    Receive(Duration),
    /// Take the packet just received, which is in turn. `Prepare`: make all that is needed to serve; `End`: have workers take all
    /// that came, quiesced, and see that every queue is where the other daemon left it.
    Take,
    Send(Answer, Duration),
    /// Serve: the other daemon never does again.
    Serve,
    /// Let go of everything, and notify the other daemon, which continues to serve.
    Refuse(String),
    /// Let go of everything and start as after a daemon died: the other one is gone and had not handed over everything.
    Restart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Sharing,
    Preparing,
    Clients,
    /// What is still to follow this client: memories, records.
    Following(u64, usize, usize),
    Adopting,
    /// The answer could not be sent: the line is closed. Has the other one said why? With everything here, it may serve no more.
    Doubting(bool),
    Over,
}

#[derive(Debug)]
pub struct Taking {
    stage: Stage,
    clients_timeout: Duration,
}

impl Taking {
    /// The old daemon has given the line; it waits for requests in flight, and for conversations to rest, so long each.
    pub fn begin(timeout: Duration) -> (Self, TakingStep) {
        // The other one's timeouts, for conversations and then for requests in flight, end before this one.
        let clients_timeout = 2 * (timeout + TAKE_TIMEOUT);
        (Self { stage: Stage::Greeting, clients_timeout }, TakingStep::Receive(TAKE_TIMEOUT))
    }

    /// The last packet is taken, or cannot be, for this reason.
    pub fn done(&mut self, done: Result<(), String>) -> TakingStep {
        match (&self.stage, done) {
            (_, Err(reason)) => self.refuse(reason),
            (Stage::Preparing, Ok(())) => TakingStep::Send(Answer::Prepared {}, PREPARE_TIMEOUT),
            (Stage::Adopting, Ok(())) => TakingStep::Send(Answer::Taken {}, TAKE_TIMEOUT),
            (Stage::Clients, Ok(())) => TakingStep::Receive(self.clients_timeout),
            (_, Ok(())) => TakingStep::Receive(TAKE_TIMEOUT),
        }
    }

    /// The answer is sent, or cannot be.
    pub fn sent(&mut self, sent: Result<(), LineError>) -> TakingStep {
        let stage = replace(&mut self.stage, Stage::Over);
        match (stage, sent) {
            (Stage::Preparing, Ok(())) => {
                self.stage = Stage::Clients;
                TakingStep::Receive(self.clients_timeout)
            }
            (Stage::Adopting, Ok(())) => TakingStep::Serve,
            (stage, Err(LineError::Ended)) => {
                self.stage = Stage::Doubting(stage == Stage::Adopting);
                TakingStep::Receive(TAKE_TIMEOUT)
            }
            (_, Err(error)) => self.refuse(error.describe("taking over")),
            (_, Ok(())) => self.out_of_order(),
        }
    }

    /// A packet was received, or will not be.
    pub fn received(&mut self, packet: Result<PacketKind, LineError>) -> TakingStep {
        let packet = match packet {
            Ok(PacketKind::Refused(reason)) => return self.refuse(format!("the running daemon refuses: {reason}")),
            Ok(packet) => packet,
            Err(LineError::Ended) => {
                // It ended while its queues were quiesced, they are all here, and it has not taken them back.
                let has_all = replace(&mut self.stage, Stage::Over) == Stage::Doubting(true);
                return if has_all { TakingStep::Serve } else { TakingStep::Restart };
            }
            Err(error) => {
                let what = self.what();
                return self.refuse(error.describe(what));
            }
        };
        self.stage = match (replace(&mut self.stage, Stage::Over), packet) {
            (Stage::Greeting, PacketKind::Greeting) | (Stage::Sharing, PacketKind::Shared) => Stage::Sharing,
            (Stage::Sharing, PacketKind::Prepare) => Stage::Preparing,
            (Stage::Clients, PacketKind::Client { client, memories, records }) => following(client, memories, records),
            (Stage::Following(client, memories @ 1.., records), PacketKind::Memory(of)) if of == client => {
                following(client, memories - 1, records)
            }
            (Stage::Following(client, 0, records @ 1..), PacketKind::Record(of)) if of == client => {
                following(client, 0, records - 1)
            }
            (Stage::Clients, PacketKind::Late) => Stage::Clients,
            (Stage::Clients, PacketKind::End) => Stage::Adopting,
            _ => return self.out_of_order(),
        };
        TakingStep::Take
    }

    const fn what(&self) -> &'static str {
        match self.stage {
            Stage::Greeting => "greeting",
            Stage::Sharing => "handing over what is shared",
            Stage::Clients => "handing over clients",
            Stage::Following(..) => "handing over queues and memory",
            _ => "taking over",
        }
    }

    fn out_of_order(&mut self) -> TakingStep {
        self.refuse("the running daemon sent something out of order; this is a bug".to_owned())
    }

    fn refuse(&mut self, reason: String) -> TakingStep {
        self.stage = Stage::Over;
        TakingStep::Refuse(reason)
    }
}

fn following(client: u64, memories: usize, records: usize) -> Stage {
    if (memories, records) == (0, 0) { Stage::Clients } else { Stage::Following(client, memories, records) }
}
