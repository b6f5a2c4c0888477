//! POSIX message queues, one each way: blocking as they are used, or polled. They hold ten messages, what the kernel allows
//! all users (`/proc/sys/fs/mqueue/msg_max`): too few for bursts, since both sides would wait for room, for ever.

use std::ffi::CString;
use std::io::{Error, ErrorKind};

use fipsee_ring::Message;

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side};

const PAYLOAD_BYTES: usize = 60;
const QUEUE_MESSAGES: i64 = 10;

/// A queue each way, without a name any more.
pub struct MessageQueue<const POLLED: bool> {
    calls: libc::mqd_t,
    answers: libc::mqd_t,
}

pub struct MessageQueueEnd {
    outgoing: libc::mqd_t,
    incoming: libc::mqd_t,
}

fn make(what: &str, polled: bool) -> Result<libc::mqd_t, String> {
    let name = CString::new(format!("/fipsee-peers-{}-{what}", std::process::id())).map_err(|error| error.to_string())?;
    // SAFETY: zeroes are valid attributes.
    let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
    attributes.mq_maxmsg = QUEUE_MESSAGES;
    attributes.mq_msgsize = 60;
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC | if polled { libc::O_NONBLOCK } else { 0 };
    // SAFETY: the name ends with a zero and the attributes are valid.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags, 0o600, &raw mut attributes) };
    if queue < 0 {
        return Err(format!("cannot make a message queue: {}", Error::last_os_error()));
    }
    // SAFETY: as above.
    unsafe { libc::mq_unlink(name.as_ptr()) };
    Ok(queue)
}

impl<const POLLED: bool> Mechanism for MessageQueue<POLLED> {
    type End = MessageQueueEnd;

    fn share(_: &Plan) -> Result<Self, String> {
        Ok(Self { calls: make("calls", POLLED)?, answers: make("answers", POLLED)? })
    }

    fn open(self, side: Side, _: &Plan) -> Result<MessageQueueEnd, String> {
        let Self { calls, answers } = self;
        let (outgoing, incoming) = if side == Side::Client { (calls, answers) } else { (answers, calls) };
        Ok(MessageQueueEnd { outgoing, incoming })
    }
}

/// Again while it would block. A full or an empty queue is no error.
fn insist(mut call: impl FnMut() -> isize) {
    let mut backoff = SpinBackoff::default();
    while call() < 0 {
        let error = Error::last_os_error();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted), "{error}");
        backoff.look_again();
    }
}

impl End for MessageQueueEnd {
    fn send(&mut self, messages: &[Message]) {
        for message in messages {
            let bytes = message.to_bytes();
            // SAFETY: the buffer is as long as stated.
            insist(|| unsafe { libc::mq_send(self.outgoing, bytes.as_ptr().cast(), PAYLOAD_BYTES, 0) } as isize);
        }
    }

    /// One by one: whether there is another can only be asked by taking it.
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut bytes = [0; PAYLOAD_BYTES];
        // SAFETY: the buffer is as long as stated.
        insist(|| unsafe { libc::mq_receive(self.incoming, bytes.as_mut_ptr().cast(), PAYLOAD_BYTES, std::ptr::null_mut()) });
        into[0] = Message::from_payload(&bytes);
        1
    }
}
