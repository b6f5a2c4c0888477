//! What another daemon needs to go on with the clients of disks, and how this one goes on with another's.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use fipsee_block::server::Standing;
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::PROFILE;
use fipsee_serve::session::{Adopted, AdoptedChannel, Channel, Client, Part};
use fipsee_serve::{Assignment, QueueName, Quiesced};
use serde::{Deserialize, Serialize};

use super::{Block, BlockAttachment, QueueEnd};
use crate::export::{Kind, Role};
use crate::takeover::wire::{StandingGiven, count, recount};
use crate::worker::DiskEngine;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientGiven {
    disk: String,
    read_only: bool,
    exclusive: bool,
    role: Role,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueGiven {
    standing: StandingGiven,
    counters: Vec<u64>,
    latency: Vec<(u64, u64)>,
}

fn write(state: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(state).map_err(|error| format!("cannot be written down: {error}"))
}

fn read<'a, T: Deserialize<'a>>(state: &'a str) -> Result<T, String> {
    serde_json::from_str(state).map_err(|error| format!("what is said of it is not understood: {error}"))
}

impl BlockAttachment {
    pub(super) fn save_parts(&self, client: u64, quiesced: &Quiesced) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        let (exclusive, role) = self.export.terms_of(client);
        let own = ClientGiven { disk: self.export.name().to_owned(), read_only: self.read_only, exclusive, role };
        self.channel.save(&write(&own)?, |index| {
            // One that could not be served from the start, as the log says.
            let standing =
                quiesced.state(QueueName { client, index }).ok_or_else(|| format!("its queue {index} is not served"))?;
            let (counters, latency) = self.export.counters(client, index).map(|counters| count(&counters)).unwrap_or_default();
            let Standing { request, completion, .. } = standing;
            let queue = QueueGiven { standing: StandingGiven::from(standing), counters, latency };
            Ok(((*request, *completion), write(&queue)?))
        })
    }
}

impl Block {
    pub(super) fn adopt_parts(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<DiskEngine>, String> {
        let AdoptedChannel { own, channel, queues } = Channel::adopt(&PROFILE, parts)?;
        let ClientGiven { disk, read_only, exclusive, role } = read(&own)?;
        let export = self.live.now().find(&disk).cloned().map_err(|_| "its disk is not there")?;
        let (mut ends, mut standings): (Vec<QueueEnd>, _) = (Vec::new(), Vec::new());
        for (queue, own) in queues {
            let QueueGiven { standing, counters, latency } = read(&own)?;
            let standing = standing.understand().ok_or("a queue stands where none can")?;
            let numbers = Arc::<QueueCounters>::default();
            recount(&numbers, &counters, &latency);
            ends.push((queue, numbers, Some(standing)));
            standings.push(standing);
        }
        let assignments: Vec<Assignment> = ends.iter().map(|_| Assignment::choose(&self.workers)).collect();
        let id = client.id;
        export.keep(Kind::Ring, id, client.credentials, (exclusive, role));
        let attachment = BlockAttachment { channel, export, read_only, live: Arc::clone(&self.live) };
        let commands = attachment.serve(id, &assignments, ends, attachment.export.info(read_only));
        let is_same = Box::new(move |quiesced: &Quiesced| quiesced.has_states(id, &standings));
        Ok(Adopted { attachment: Box::new(attachment), assignments, commands, is_same })
    }
}
