//! The receiver of a request's outcome.

use std::sync::mpsc::SyncSender;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};

/// The receiver of a request's outcome.
#[derive(Debug)]
pub(super) enum Answer {
    /// To a program that reads: `length_bytes` of the data from `skip_bytes` on, because whole blocks were read.
    Read { reply: ReplyData, skip_bytes: usize, length_bytes: usize },
    /// To a program that writes.
    Write { reply: ReplyWrite, length_bytes: u32 },
    /// To a program that waits for completion without data.
    Done(ReplyEmpty),
    /// To a thread of this process, with the data that was read.
    Thread(SyncSender<Result<Vec<u8>, Errno>>),
}

impl Answer {
    /// Send it. `data` is the data of a read, and empty otherwise.
    pub(super) fn send(self, outcome: Result<&[u8], Errno>) {
        match (self, outcome) {
            (Self::Read { reply, skip_bytes, length_bytes }, Ok(data)) => match data.get(skip_bytes..skip_bytes + length_bytes) {
                Some(wanted) => reply.data(wanted),
                None => reply.error(Errno::EIO),
            },
            (Self::Write { reply, length_bytes }, Ok(_)) => reply.written(length_bytes),
            (Self::Done(reply), Ok(_)) => reply.ok(),
            (Self::Read { reply, .. }, Err(errno)) => reply.error(errno),
            (Self::Write { reply, .. }, Err(errno)) => reply.error(errno),
            (Self::Done(reply), Err(errno)) => reply.error(errno),
            // A thread that no longer waits needs no answer.
            (Self::Thread(sender), outcome) => drop(sender.send(outcome.map(<[u8]>::to_vec))),
        }
    }
}
