//! What the kernel offers two processes as a stream of bytes or packets: pipe, Unix stream, Unix seqpacket, blocking as
//! they are used. `Polling` asks without blocking instead, which spares the wake-up.

use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};

use fipsee_ring::Message;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{BURST, End, Mechanism, Plan, Side};

const PAYLOAD_BYTES: usize = 60;

/// Which of them.
pub trait Kind {
    /// Does a read return one message, however many there are?
    const IS_PACKETS: bool;
    /// Never block.
    const IS_POLLING: bool;

    /// For each side the descriptor it reads and the one it writes.
    fn make() -> Result<[[OwnedFd; 2]; 2], Errno>;
}

fn sockets(kind: SocketType) -> Result<[[OwnedFd; 2]; 2], Errno> {
    let (client, server) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let twice = |fd: OwnedFd| Ok::<_, Errno>([rustix::io::dup(&fd)?, fd]);
    Ok([twice(client)?, twice(server)?])
}

fn pipes() -> Result<[[OwnedFd; 2]; 2], Errno> {
    let ((calls_out, calls_in), (answers_out, answers_in)) = (rustix::pipe::pipe()?, rustix::pipe::pipe()?);
    Ok([[answers_out, calls_in], [calls_out, answers_in]])
}

macro_rules! kinds {
    ($($(#[$about:meta])* $name:ident: packets $packets:literal, polling $polling:literal, $make:expr;)*) => {$(
        $(#[$about])*
        pub struct $name;

        impl Kind for $name {
            const IS_PACKETS: bool = $packets;
            const IS_POLLING: bool = $polling;

            fn make() -> Result<[[OwnedFd; 2]; 2], Errno> {
                $make
            }
        }
    )*};
}

kinds! {
    Pipe: packets false, polling false, pipes();
    /// Two pipes that never block.
    PollingPipe: packets false, polling true, pipes();
    UnixStream: packets false, polling false, sockets(SocketType::STREAM);
    /// A pair of stream sockets that never block.
    PollingUnixStream: packets false, polling true, sockets(SocketType::STREAM);
    Seqpacket: packets true, polling false, sockets(SocketType::SEQPACKET);
    /// A pair of packet sockets that never block.
    PollingSeqpacket: packets true, polling true, sockets(SocketType::SEQPACKET);
}

pub struct Stream<K>([[OwnedFd; 2]; 2], PhantomData<K>);

/// Those of one side, and room for what is packed into one call of the kernel.
pub struct StreamEnd<K> {
    reads: OwnedFd,
    writes: OwnedFd,
    out: [u8; BURST * PAYLOAD_BYTES],
    into: [u8; BURST * PAYLOAD_BYTES],
    kind: PhantomData<K>,
}

impl<K: Kind> Mechanism for Stream<K> {
    type End = StreamEnd<K>;

    fn share(_: &Plan) -> Result<Self, String> {
        K::make().map(|ends| Self(ends, PhantomData)).map_err(|error| error.to_string())
    }

    fn open(self, side: Side, _: &Plan) -> Result<StreamEnd<K>, String> {
        let [client, server] = self.0;
        let [reads, writes] = if side == Side::Client { client } else { server };
        if K::IS_POLLING {
            for fd in [&reads, &writes] {
                rustix::io::ioctl_fionbio(fd, true).map_err(|error| error.to_string())?;
            }
        }
        Ok(StreamEnd { reads, writes, out: [0; _], into: [0; _], kind: PhantomData })
    }
}

/// A call of the kernel, again and again while it would block.
#[inline(always)]
fn insist(mut call: impl FnMut() -> Result<usize, Errno>) -> usize {
    let mut backoff = SpinBackoff::default();
    loop {
        match call() {
            Ok(0) => panic!("the other side is gone"),
            Ok(count) => return count,
            Err(Errno::AGAIN | Errno::INTR) => backoff.look_again(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn write_all(fd: impl AsFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        bytes = &bytes[insist(|| rustix::io::write(&fd, bytes))..];
    }
}

impl<K: Kind> End for StreamEnd<K> {
    /// Packets go one by one: sendmmsg saves the calls, not the wake-ups, and would compete with a blocking reader.
    fn send(&mut self, messages: &[Message]) {
        for (bytes, message) in self.out.chunks_exact_mut(PAYLOAD_BYTES).zip(messages) {
            bytes.copy_from_slice(&message.to_bytes()[..PAYLOAD_BYTES]);
        }
        let bytes = &self.out[..messages.len() * PAYLOAD_BYTES];
        match K::IS_PACKETS {
            true => bytes.chunks_exact(PAYLOAD_BYTES).for_each(|bytes| write_all(&self.writes, bytes)),
            false => write_all(&self.writes, bytes),
        }
    }

    fn receive(&mut self, into: &mut [Message]) -> usize {
        let wanted_bytes = if K::IS_PACKETS { PAYLOAD_BYTES } else { into.len() * PAYLOAD_BYTES };
        let mut have_bytes = 0;
        // A stream may end in the middle of a message.
        while have_bytes == 0 || have_bytes % PAYLOAD_BYTES != 0 {
            let room = &mut self.into[have_bytes..wanted_bytes];
            have_bytes += insist(|| rustix::io::read(&self.reads, &mut *room));
        }
        for (message, bytes) in into.iter_mut().zip(self.into[..have_bytes].as_chunks::<PAYLOAD_BYTES>().0) {
            *message = Message::from_payload(bytes);
        }
        have_bytes / PAYLOAD_BYTES
    }
}
