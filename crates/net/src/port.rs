//! A program's end of a port: one pair of queues, its buffers, and how it waits.

mod buffers;
mod changes;
mod options;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use fipsee_ring::Message;
use fipsee_ring::channel::{FEATURE_CHOICES, FEATURE_WORKER_CPU};
use fipsee_ring::control::{Control, Wanted};
use fipsee_ring::fault::expect;
use fipsee_ring::handshake::{self, AttachedChannel, ask, unexpected};
use fipsee_ring::port::Port as Waiter;
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::Backoff;

pub use self::buffers::Buffer;
use self::buffers::{Buffers, divide, give_back, received_bytes, stride_bytes, too_long};
use self::changes::Changes;
pub use self::options::{AttachOptions, ListedPortInfo, list};
use crate::error::{Error, NetError};
use crate::frame::{HEADER_BYTES, Mac};
use crate::wire::{
    Filled, KIND_EVENT, KIND_RECEIVED, KIND_RECEIVED_SMALL, MAX_FIRST_BYTES, MAX_FRAME_BUFFERS, MAX_MTU, MAX_POSTED,
    MAX_SMALL_BYTES, OPERATION_SEND, OPERATION_SEND_SMALL, Offload, PROFILE, PortInfo, Post, PostedBuffer, QUEUES_PER_PAIR,
    SERVICE_NET, Send, Small, Status, first_byte, max_offloaded_bytes, sent_tag,
};

/// The pool has this id.
const POOL: u16 = 0;

/// One pair of queues of a port, for one thread at a time. Dropping the last of an attachment ends it.
#[derive(Debug)]
pub struct Port {
    control: Arc<Seqpacket>,
    region: Arc<Region>,
    info: PortInfo,
    transmit: Waiter,
    receive: Waiter,
    sending: Buffers,
    receiving: Buffers,
    /// Transmit buffers that are free.
    free: Vec<u16>,
    staged: Vec<Message>,
    /// Receive buffers to be posted.
    unposted: VecDeque<u16>,
    /// What became of frames that were not sent: the newest status, and how many.
    refused: Option<Status>,
    refused_count: u64,
    sent_back: u64,
    /// Of the frame that was received last.
    received_offload: Offload,
    changes: Changes,
}

impl Port {
    /// Attach to a port with one pair of queues.
    ///
    /// # Errors
    /// [`Error::Connect`] when nothing listens, [`Error::Refused`] with the daemon's words, and whatever else can go wrong with a peer
    /// or the system.
    pub fn attach(socket_path: &Path, options: &AttachOptions) -> Result<Self, Error> {
        let options = AttachOptions { pairs: 1, ..options.clone() };
        Self::attach_pairs(socket_path, &options)?.pop().ok_or(Error::Disconnected)
    }

    /// Attach with several pairs. Frames of one flow come by one of them.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_pairs(socket_path: &Path, options: &AttachOptions) -> Result<Vec<Self>, Error> {
        options.wait.available()?;
        let (pairs, depth) = (options.pairs.max(1), options.depth.max(1));
        let bytes = |stride_bytes: u32| u64::from(depth) * u64::from(stride_bytes);
        let longest = stride_bytes(max_offloaded_bytes(MAX_MTU, options.offloads));
        let received = received_bytes(options, longest, options.offloads);
        let wanted = Wanted {
            service: SERVICE_NET,
            queue_count: pairs.saturating_mul(QUEUES_PER_PAIR),
            depth,
            flags: options.flags(),
            pool_bytes: u64::from(pairs) * (bytes(longest) + bytes(received)),
            name: options.name.clone(),
        };
        Self::over(handshake::attach(socket_path, FEATURE_CHOICES | FEATURE_WORKER_CPU, &PROFILE, wanted)?, options)
    }

    fn over(attached: AttachedChannel, options: &AttachOptions) -> Result<Vec<Self>, Error> {
        let AttachedChannel { control, region, layout, service_info, queues } = attached;
        let info = PortInfo::from_bytes(&service_info, options.offloads)?;
        let count = queues.len();
        expect("the queues of a port", count as u64, count == usize::from(info.pairs * QUEUES_PER_PAIR))?;
        // Whole cache lines.
        let (control, share_bytes) = (Arc::new(control), layout.pool_bytes / u64::from(info.pairs) / 64 * 64);
        let (mut ports, mut queues) = (Vec::new(), queues.into_iter().zip(&layout.queues));
        for pair in 0..u64::from(info.pairs) {
            let (Some(transmit), Some(receive)) = (queues.next(), queues.next()) else { break };
            let first_bytes = pair * share_bytes;
            let buffers = divide(&info, (transmit.1, receive.1), (layout.pool_offset_bytes, first_bytes, share_bytes), options)?;
            let (sending, receiving) = buffers;
            let waiter = |queue| Waiter::new(queue, Backoff::new(options.wait, options.look));
            let tags = |buffers: &Buffers| 0..u16::try_from(buffers.given.len()).unwrap_or(u16::MAX);
            let (free, unposted) = (tags(&sending).rev().collect(), tags(&receiving).collect());
            let mut port = Self {
                control: Arc::clone(&control),
                region: Arc::clone(&region),
                info,
                transmit: waiter(transmit.0),
                receive: waiter(receive.0),
                staged: Vec::with_capacity(sending.given.len()),
                sending,
                receiving,
                free,
                unposted,
                refused: None,
                refused_count: 0,
                sent_back: 0,
                received_offload: Offload::NONE,
                changes: Changes::default(),
            };
            port.post(true);
            ports.push(port);
        }
        Ok(ports)
    }

    pub const fn info(&self) -> PortInfo {
        self.info
    }

    pub const fn mac(&self) -> Mac {
        Mac(self.info.mac)
    }

    /// Send a frame, beginning with its Ethernet header, without a checksum at its end. It is copied.
    ///
    /// # Errors
    /// [`NetError::Length`]; [`Error::Full`] when all transmit buffers are on their way.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.stage(frame)?;
        self.submit();
        Ok(())
    }

    /// As [`send`](Self::send), but the frame leaves with the next [`submit`](Self::submit).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn stage(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.stage_offloaded(frame, Offload::NONE)
    }

    /// As [`stage`](Self::stage), of a frame that leaves something to be done, by offloads that are in force
    /// ([`info`](Self::info)).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn stage_offloaded(&mut self, frame: &[u8], offload: Offload) -> Result<(), Error> {
        self.check_length(frame.len())?;
        let tag = self.free_tag()?;
        let message = if frame.len() <= MAX_SMALL_BYTES && offload == Offload::NONE {
            Small::new(OPERATION_SEND_SMALL, tag, frame).to_message()
        } else {
            let (first, rest) = frame.split_at(MAX_FIRST_BYTES.min(frame.len()));
            let offset_bytes = self.sending.region_offset_bytes(tag) + MAX_FIRST_BYTES as u64;
            self.region.write(offset_bytes, rest)?;
            self.send_message(tag, first, rest.len(), offload)
        };
        self.staged.push(message);
        Ok(())
    }

    /// A transmit buffer to be filled in place.
    ///
    /// # Errors
    /// [`Error::Full`] when all are on their way.
    pub fn buffer(&mut self) -> Result<Buffer, Error> {
        let tag = self.free_tag()?;
        let offset_bytes = self.sending.region_offset_bytes(tag);
        let length_bytes = self.info.max_frame_bytes;
        let base = self.region.pointer("transmit buffer", offset_bytes, length_bytes.into())?;
        Ok(Buffer { tag, base, length_bytes, region: Arc::clone(&self.region), offset_bytes })
    }

    /// Send the frame that begins a buffer; it leaves with the next [`submit`](Self::submit). Nothing but its first bytes is copied.
    ///
    /// # Errors
    /// [`NetError::Length`]; the buffer is then free again. [`NetError::OtherBuffer`].
    pub fn send_buffer(&mut self, buffer: Buffer, length_bytes: u32) -> Result<(), Error> {
        self.send_buffer_offloaded(buffer, length_bytes, Offload::NONE)
    }

    /// As [`send_buffer`](Self::send_buffer), of a frame that leaves something to be done, by offloads that are in force.
    ///
    /// # Errors
    /// As [`send_buffer`](Self::send_buffer).
    pub fn send_buffer_offloaded(&mut self, buffer: Buffer, length_bytes: u32, offload: Offload) -> Result<(), Error> {
        self.check_own(&buffer)?;
        let Buffer { tag, offset_bytes, .. } = buffer;
        if let Err(error) = self.check_length(length_bytes as usize) {
            self.free.push(tag);
            return Err(error);
        }
        let mut first = [0; MAX_FIRST_BYTES];
        let first = &mut first[..MAX_FIRST_BYTES.min(length_bytes as usize)];
        self.region.read(offset_bytes, first)?;
        let message = self.send_message(tag, first, length_bytes as usize - first.len(), offload);
        self.staged.push(message);
        Ok(())
    }

    /// A buffer that is not sent after all.
    ///
    /// # Errors
    /// [`NetError::OtherBuffer`].
    pub fn put_back(&mut self, buffer: Buffer) -> Result<(), Error> {
        self.check_own(&buffer)?;
        self.free.push(buffer.tag);
        Ok(())
    }

    /// Buffers of other pairs, which share the region, are elsewhere in it.
    fn check_own(&self, Buffer { tag, region, offset_bytes, .. }: &Buffer) -> Result<(), Error> {
        let is_own = Arc::ptr_eq(region, &self.region) && *offset_bytes == self.sending.region_offset_bytes(*tag);
        if is_own { Ok(()) } else { Err(Error::Service(NetError::OtherBuffer)) }
    }

    fn send_message(&self, tag: u16, first: &[u8], rest_bytes: usize, offload: Offload) -> Message {
        let mut bytes = [0; MAX_FIRST_BYTES];
        bytes[..first.len()].copy_from_slice(first);
        let rest_bytes = u32::try_from(rest_bytes).unwrap_or(u32::MAX);
        let (memory, first_bytes) = (POOL, u8::try_from(first.len()).unwrap_or(u8::MAX));
        // Behind the first ones; without a rest it means nothing.
        let offset_bytes = if rest_bytes == 0 { 0 } else { self.sending.pool_offset_bytes(tag) + u32::from(first_bytes) };
        let operation = OPERATION_SEND;
        Send { operation, first_bytes, tag, offset_bytes, rest_bytes, memory, offload, first: bytes, stamp: 0 }.to_message()
    }

    fn check_length(&self, length_bytes: usize) -> Result<(), Error> {
        let most = self.info.max_frame_bytes;
        let is_possible = (HEADER_BYTES as usize..=most as usize).contains(&length_bytes);
        if is_possible { Ok(()) } else { Err(too_long(length_bytes, most)) }
    }

    fn free_tag(&mut self) -> Result<u16, Error> {
        if self.free.is_empty() {
            self.submit();
            self.reap()?;
        }
        self.free.pop().ok_or(Error::Full)
    }

    /// Publish what was staged, in one burst, and wake the daemon if it sleeps.
    pub fn submit(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        // Not before: of a frame that is only staged no answer may come.
        self.staged.iter().for_each(|message| self.sending.given[usize::from(sent_tag(message))] = true);
        let published = self.transmit.queue.requests.publish_all(&self.staged);
        debug_assert!(published.is_ok(), "there are no more buffers than the ring takes");
        self.staged.clear();
        if self.transmit.queue.requests.reader_needs_doorbell() {
            self.transmit.queue.daemon_doorbell.ring();
        }
    }

    /// Take what was sent back, without waiting: how many frames.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    pub fn reap(&mut self) -> Result<u64, Error> {
        let reaped = self.try_reap();
        self.ended_by(reaped)
    }

    fn try_reap(&mut self) -> Result<u64, Error> {
        let (mut message, before) = (Message::ZERO, self.sent_back);
        while self.transmit.queue.completions.receive(&mut message) {
            let (refused, count) = give_back(&message, &mut self.sending, |tag| {
                self.transmit.queue.requests.answered();
                self.free.push(tag);
            })?;
            self.sent_back += count;
            if let Some(status) = refused.0 {
                self.refused = Some(status);
                self.refused_count += refused.1;
            }
        }
        Ok(self.sent_back - before)
    }

    /// Frames that were sent and not given back.
    pub fn unsent(&self) -> u32 {
        self.transmit.queue.requests.outstanding() + u32::try_from(self.staged.len()).unwrap_or(u32::MAX)
    }

    /// How many frames the daemon did not take, and why not, of the newest.
    pub fn refused(&self) -> (u64, Option<Status>) {
        (self.refused_count, self.refused)
    }

    /// Publish what was staged and wait until all of it was sent back, at most until `deadline_ticks`: `false` if it was not.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the daemon is gone.
    pub fn wait_sent(&mut self, deadline_ticks: Option<u64>) -> Result<bool, Error> {
        self.submit();
        loop {
            if self.reap()? > 0 {
                self.transmit.backoff.reset();
            }
            if self.unsent() == 0 {
                return Ok(true);
            }
            if !self.transmit.pause(deadline_ticks, false, || self.control.is_hung_up())? {
                return Ok(false);
            }
        }
    }

    /// Post receive buffers that are free: in whole messages, or `all`.
    fn post(&mut self, all: bool) {
        while self.unposted.len() >= MAX_POSTED || all && !self.unposted.is_empty() {
            let mut buffers = [PostedBuffer::default(); MAX_POSTED];
            let count = self.unposted.len().min(MAX_POSTED);
            for buffer in &mut buffers[..count] {
                let Some(tag) = self.unposted.pop_front() else { return };
                self.receiving.given[usize::from(tag)] = true;
                let offset_bytes = self.receiving.pool_offset_bytes(tag);
                *buffer = PostedBuffer { tag, memory: POOL, offset_bytes, length_bytes: self.receiving.stride_bytes };
            }
            let posted = Post::new(&buffers[..count]).to_message();
            let published = self.receive.queue.requests.publish_several(&posted, u32::try_from(count).unwrap_or(0));
            debug_assert!(published.is_ok(), "there are no more buffers than the ring takes");
        }
    }

    /// Take the next frame, if one is there, in place of what `frame` has. Its buffers are posted again, several at a time.
    ///
    /// # Errors
    /// The daemon broke the protocol, or is gone, which is looked for once in many empty looks; [`NetError::NotPosted`].
    pub fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, Error> {
        let received = self.try_receive(frame);
        self.ended_by(received)
    }

    /// What the frame that was received last leaves to be done. Nothing, unless the attachment has offloads in force.
    pub const fn received_offload(&self) -> Offload {
        self.received_offload
    }

    fn try_receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, Error> {
        frame.clear();
        self.received_offload = Offload::NONE;
        let mut message = Message::ZERO;
        if !self.receive.queue.completions.receive(&mut message) {
            self.post(true);
            self.acknowledge()?;
            self.receive.check_liveness_now_and_then(|| self.control.is_hung_up())?;
            return Ok(false);
        }
        match first_byte(&message) {
            KIND_RECEIVED_SMALL => self.take_small(&Small::of(&message), frame)?,
            KIND_RECEIVED => self.take_filled(&Filled::of(&message), frame)?,
            KIND_EVENT => {
                self.take_event(&message)?;
                return Ok(false);
            }
            _ => {
                let (requests, unposted) = (&mut self.receive.queue.requests, &mut self.unposted);
                let ((refused, refusals), count) = give_back(&message, &mut self.receiving, |tag| {
                    requests.answered();
                    unposted.push_back(tag);
                })?;
                expect("buffers without a frame and without a reason", count - refusals, refusals == count)?;
                if let Some(status) = refused {
                    return Err(Error::Service(NetError::NotPosted(status)));
                }
                return Ok(false);
            }
        }
        self.post(false);
        Ok(true)
    }

    /// A daemon that breaks the protocol is talked to no more.
    fn ended_by<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if matches!(outcome, Err(Error::Fault(_))) {
            let _ = rustix::net::shutdown(&*self.control, rustix::net::Shutdown::Both);
        }
        outcome
    }

    fn take_small(&mut self, small: &Small, frame: &mut Vec<u8>) -> Result<(), Error> {
        let length = small.length_bytes;
        expect(
            "the length of a small frame",
            length,
            usize::from(length) <= MAX_SMALL_BYTES && u32::from(length) >= HEADER_BYTES,
        )?;
        self.take_back(small.tag)?;
        frame.extend_from_slice(&small.bytes[..usize::from(length)]);
        Ok(())
    }

    fn take_filled(&mut self, filled: &Filled, frame: &mut Vec<u8>) -> Result<(), Error> {
        let Filled { count, reserved, length_bytes, offload, reserved_too, tags, .. } = *filled;
        let count = usize::from(count);
        expect("the buffers of a frame", count as u64, (1..=MAX_FRAME_BUFFERS).contains(&count))?;
        let stride = self.receiving.stride_bytes as usize;
        let fits = (length_bytes as usize).div_ceil(stride) == count;
        let is_possible = (HEADER_BYTES..=self.info.max_frame_bytes).contains(&length_bytes);
        expect("the length of a frame", length_bytes, fits && is_possible)?;
        expect("a reserved field", reserved | reserved_too, reserved == 0 && reserved_too == 0)?;
        let is_in_force = offload.needs().is_some_and(|needs| needs & !self.info.offloads == 0);
        expect("an offload that is not in force", offload.flags, is_in_force)?;
        self.received_offload = offload;
        frame.resize(length_bytes as usize, 0);
        for (tag, piece) in tags[..count].iter().zip(frame.chunks_mut(stride)) {
            self.take_back(*tag)?;
            self.region.read(self.receiving.region_offset_bytes(*tag), piece)?;
        }
        Ok(())
    }

    fn take_back(&mut self, tag: u16) -> Result<(), Error> {
        self.receiving.take_back(tag)?;
        self.receive.queue.requests.answered();
        self.unposted.push_back(tag);
        Ok(())
    }

    /// Publish what was staged and wait for the next frame, at most until `deadline_ticks`; `false` if none came by then.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`Error::Disconnected`] when the daemon is gone.
    pub fn wait(&mut self, deadline_ticks: Option<u64>, frame: &mut Vec<u8>) -> Result<bool, Error> {
        self.submit();
        loop {
            if self.receive(frame)? {
                self.receive.backoff.reset();
                return Ok(true);
            }
            if !self.receive.pause(deadline_ticks, false, || self.control.is_hung_up())? {
                return Ok(false);
            }
        }
    }

    /// Detach in order: what was submitted is sent first. Other pairs of the attachment end with it.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn detach(mut self) -> Result<(), Error> {
        self.submit();
        match ask(&self.control, &Control::Detach, &[], "the request to detach")? {
            (Control::Detached, _) => Ok(()),
            (answer, _) => Err(unexpected(&answer)),
        }
    }
}
