//! What the daemon has answered, seen right after each step: every message, every frame, and what was left out.

use std::collections::HashMap;

use fipsee_net::frame::Mac;
use fipsee_net::wire::{
    ADDRESSES_BYTES, Addresses, Filled, FilledPacked, KIND_RECEIVED, KIND_RECEIVED_COMPRESSED, KIND_RECEIVED_PACKED,
    KIND_RECEIVED_SMALL, KIND_RETURNED, MAX_COMPRESSED_BYTES, MAX_FRAME_BUFFERS, MAX_RETURNED, MAX_SMALL_BYTES, Offload,
    PackedBuffer, Returned, Small, Status, first_byte, is_compressible,
};
use fipsee_ring::Message;

use super::frames::{Frame, number_of, own};
use super::{AddressLocation, Due, Lan, PairView, Posted, RECEIVED, SENT, Sent, View, is_member};
use crate::context::Context;

/// Does a port get a frame?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Never,
    /// The switch may still know where the address was.
    May,
    Must,
    /// A copy, as it was sent.
    Copy,
}

type Learned = HashMap<(u16, Mac), AddressLocation>;

impl Lan {
    /// Look at what the daemon has published since the last time. `is_up`: ports of which the daemon has the client.
    pub(crate) fn watch(&mut self, context: &Context, is_up: &[bool]) {
        (0..is_up.len()).filter(|port| !is_up[*port]).for_each(|port| self.may_be_forgotten(port));
        let mut views = std::mem::take(&mut self.views);
        let mut taken = Vec::new();
        for (port, view) in views.iter_mut().enumerate().filter_map(|(port, view)| Some((port, view.as_mut()?))) {
            for pair in &mut view.pairs {
                self.watch_sent(context, port, pair, &mut taken);
            }
        }
        let before = self.learned.clone();
        for index in &taken {
            let Sent { frame, port, .. } = &self.frames[*index];
            if frame.source != own(*port) {
                self.learned.insert((frame.vlan, frame.source), AddressLocation::Behind(*port));
            }
        }
        for port in 0..views.len() {
            let attachments: Vec<Option<u64>> = views.iter().map(|view| view.as_ref().map(|view| view.attachment)).collect();
            let Some(view) = &mut views[port] else { continue };
            self.watch_received(context, port, view, &attachments, &before);
        }
        for index in taken {
            for (port, view) in views.iter().enumerate().filter(|(port, _)| is_up[*port]) {
                self.check_dropped(context, index, port, view.as_ref(), &before);
            }
        }
        self.views = views;
    }

    /// The answers to frames: each once, with what the rules say.
    fn watch_sent(&mut self, context: &Context, port: usize, pair: &mut PairView, taken: &mut Vec<usize>) {
        let mut message = Message::ZERO;
        while pair.readers[SENT].receive(&mut message) {
            let Returned { kind, count, reserved, entries, .. } = Returned::of(&message);
            if kind != KIND_RETURNED || !(1..=MAX_RETURNED).contains(&usize::from(count)) || reserved != 0 {
                return context.violated(|| format!("port {port} is sent no answer to frames: {message:?}"));
            }
            for entry in &entries[..usize::from(count)] {
                let status = Status::from_wire(entry.status);
                let Some(index) = pair.sent.remove(&entry.tag) else {
                    return context.violated(|| format!("port {port} gets tag {} back, of no frame of it", entry.tag));
                };
                let sent = &mut self.frames[index];
                context.say(|| format!("lan: frame {index} of port {port}: {status:?}"));
                if status != Some(sent.frame.expected) {
                    let Frame { expected, ref bytes, .. } = sent.frame;
                    let found =
                        format!("frame {index} of port {port} has status {status:?} instead of {expected:?}: {bytes:02x?}");
                    return context.violated(|| found);
                }
                sent.status = status;
                if status == Some(Status::Ok) {
                    taken.push(index);
                }
            }
            pair.due[SENT].push_back(Due { message, buffers: Vec::new() });
        }
    }

    fn watch_received(&mut self, context: &Context, port: usize, view: &mut View, attachments: &[Option<u64>], before: &Learned) {
        let View { attachment, region, pool_offset_bytes, is_faulty, pairs } = view;
        for (number, pair) in pairs.iter_mut().enumerate() {
            let mut message = Message::ZERO;
            while pair.readers[RECEIVED].receive(&mut message) {
                let read = |place: &Posted, bytes: &mut [u8]| {
                    let offset_bytes = *pool_offset_bytes + u64::from(place.buffer.offset_bytes);
                    region.read(offset_bytes, bytes).expect("it was posted within the pool");
                };
                match answered(&message, pair, *is_faulty, read) {
                    Err(what) => return context.violated(|| format!("port {port}: {what}: {message:?}")),
                    Ok(frames) => {
                        // Buffers that are posted twice may hold parts of the same frame in one place.
                        if !*is_faulty || matches!(first_byte(&message), KIND_RECEIVED_SMALL | KIND_RECEIVED_COMPRESSED) {
                            let to = (port, number, *attachment);
                            frames.iter().for_each(|bytes| self.check_received(context, to, bytes, attachments, before));
                        }
                        let stride = self.ports[port].buffer_bytes as usize;
                        let buffers = match first_byte(&message) {
                            _ if *is_faulty => Vec::new(),
                            KIND_RECEIVED => frames.iter().flat_map(|frame| frame.chunks(stride)).map(<[u8]>::to_vec).collect(),
                            KIND_RECEIVED_PACKED => frames,
                            _ => Vec::new(),
                        };
                        pair.due[RECEIVED].push_back(Due { message, buffers });
                    }
                }
            }
        }
    }

    /// A frame was received: is it one that was sent, for this port, for the first time, and after those before it?
    fn check_received(
        &mut self,
        context: &Context,
        (port, pair, attachment): (usize, usize, u64),
        bytes: &[u8],
        attachments: &[Option<u64>],
        before: &Learned,
    ) {
        let index = number_of(bytes).and_then(|number| usize::try_from(number).ok());
        let Some(index) = index.filter(|index| *index < self.frames.len()) else {
            return context.violated(|| format!("port {port} receives a frame that was never sent: {bytes:02x?}"));
        };
        context.say(|| format!("lan: port {port} receives frame {index}"));
        let right = self.right(index, port, before);
        let Sent { frame, port: from, status, attachment: sender, pair: by, .. } = &self.frames[index];
        let expected = match right {
            Right::Never => {
                return context
                    .violated(|| format!("port {port} receives frame {index} of port {from}, which is not for it: {frame:?}"));
            }
            Right::Copy => frame.bytes.clone(),
            Right::May | Right::Must => frame.leaving(&self.rules[port].vlans),
        };
        // That of a client that is gone cannot be asked for.
        let is_taken = match status {
            Some(status) => *status == Status::Ok,
            None => attachments[*from] != Some(*sender) && frame.expected == Status::Ok,
        };
        if !is_taken {
            return context.violated(|| format!("port {port} receives frame {index}, which was not taken: {status:?}"));
        }
        // A copy for a mirror that the address may be behind.
        let may_be_copy = right == Right::May && self.rules[port].mirror && bytes == frame.bytes;
        if bytes != expected && !may_be_copy {
            return context.violated(|| format!("port {port} receives frame {index} as {bytes:02x?} instead of {expected:02x?}"));
        }
        let way = [(*sender, *by), (attachment, pair)];
        if self.frames[index].received.contains(&port) {
            return context.violated(|| format!("port {port} receives frame {index} twice"));
        }
        if let Some(newer) = self.newest.insert(way, index).filter(|newer| *newer > index) {
            return context.violated(|| format!("port {port} receives frame {index} after frame {newer} of the same queue"));
        }
        self.frames[index].received.push(port);
        self.received += 1;
    }

    /// A frame was taken: has every port that must get it got it, or not enough buffers?
    fn check_dropped(&self, context: &Context, index: usize, port: usize, view: Option<&View>, before: &Learned) {
        let Some(view) = view.filter(|view| !view.is_faulty) else { return };
        let (Sent { frame, received, .. }, right) = (&self.frames[index], self.right(index, port, before));
        if received.contains(&port) || matches!(right, Right::Never | Right::May) {
            return;
        }
        let length = if right == Right::Copy { frame.bytes.len() } else { frame.leaving(&self.rules[port].vlans).len() };
        let bytes = |posted: &Posted| posted.buffer.length_bytes as usize;
        let room = |pair: &PairView| pair.posted.iter().take(MAX_FRAME_BUFFERS).map(bytes).sum::<usize>();
        // Which of its pairs it would have come by is the daemon's choice.
        if view.pairs.iter().all(|pair| room(pair) >= if length <= MAX_SMALL_BYTES { 1 } else { length }) {
            context
                .violated(|| format!("frame {index} of {length} bytes is not received by port {port}, which has buffers for it"));
        }
    }

    /// By the rules of the documents alone.
    fn right(&self, index: usize, port: usize, before: &Learned) -> Right {
        let Sent { frame, port: from, .. } = &self.frames[index];
        let (rules, sender) = (&self.rules[port], &self.rules[*from]);
        if port == *from {
            return Right::Never;
        }
        let may_meet = !(rules.isolated && sender.isolated) && is_member(rules, frame.vlan);
        let own_port = (0..self.rules.len()).find(|port| own(*port) == frame.destination);
        let right = match own_port {
            _ if !may_meet => Right::Never,
            _ if frame.destination.is_group() => Right::Must,
            Some(owner) if owner == port => Right::Must,
            Some(_) => Right::Never,
            None if !rules.any_source => Right::Never,
            None => {
                let key = (frame.vlan, frame.destination);
                match (before.get(&key), self.learned.get(&key)) {
                    (None, None) => Right::Must,
                    (Some(AddressLocation::Behind(was)), Some(AddressLocation::Behind(is))) if was == is => {
                        if *is == port {
                            Right::Must
                        } else {
                            Right::Never
                        }
                    }
                    _ => Right::May,
                }
            }
        };
        match right {
            Right::Never if rules.mirror => Right::Copy,
            right => right,
        }
    }
}

/// The buffers that a message answers are no longer posted. The frames in them; or what is wrong.
fn answered(
    message: &Message,
    pair: &mut PairView,
    is_faulty: bool,
    read: impl Fn(&Posted, &mut [u8]),
) -> Result<Vec<Vec<u8>>, String> {
    match first_byte(message) {
        KIND_RECEIVED_SMALL => {
            let Small { length_bytes, tag, bytes, .. } = Small::of(message);
            let length = usize::from(length_bytes);
            if !(14..=MAX_SMALL_BYTES).contains(&length) || bytes[length..].iter().any(|byte| *byte != 0) {
                return Err("a small frame has an impossible length, or bytes behind it".to_owned());
            }
            take(pair, tag, is_faulty, None)?;
            pair.addresses = Addresses::of(&bytes);
            Ok(vec![bytes[..length].to_vec()])
        }
        KIND_RECEIVED_COMPRESSED => compressed_frame(message, pair, is_faulty),
        KIND_RECEIVED => {
            let Filled { count, reserved, length_bytes, offload, reserved_too, tags, .. } = Filled::of(message);
            let (count, length) = (usize::from(count), length_bytes as usize);
            let is_sound =
                (1..=MAX_FRAME_BUFFERS).contains(&count) && length > MAX_SMALL_BYTES && reserved == 0 && reserved_too == 0;
            if !is_sound || offload != Offload::default() || tags[count..].iter().any(|tag| *tag != 0) {
                return Err("a frame in buffers is not as it must be".to_owned());
            }
            let mut frame = vec![0; length];
            let mut filled = 0;
            for tag in &tags[..count] {
                let posted = take(pair, *tag, is_faulty, None)?;
                let end = (filled + posted.buffer.length_bytes as usize).min(length);
                if end == filled {
                    return Err("a buffer of a frame is empty".to_owned());
                }
                read(&posted, &mut frame[filled..end]);
                filled = end;
            }
            if length <= MAX_COMPRESSED_BYTES {
                pair.addresses = Addresses::of(&frame);
            }
            if filled < length { Err("the buffers do not hold the frame".to_owned()) } else { Ok(vec![frame]) }
        }
        KIND_RECEIVED_PACKED => {
            let packed = FilledPacked::of(message);
            let frames = packed.named().filter(|_| packed.reserved == 0).ok_or("frames with a wrong count or reserved field")?;
            if packed.frames[frames.len()..].iter().any(|frame| *frame != PackedBuffer::default()) {
                return Err("there is something behind the frames of a message".to_owned());
            }
            let each = |PackedBuffer { tag, length_bytes }: &PackedBuffer| {
                let posted = take(pair, *tag, is_faulty, None)?;
                if *length_bytes < 14 || u32::from(*length_bytes) > posted.buffer.length_bytes {
                    return Err(format!("a frame of {length_bytes} bytes is in buffer {tag}"));
                }
                let mut frame = vec![0; usize::from(*length_bytes)];
                read(&posted, &mut frame);
                Ok(frame)
            };
            frames.iter().map(each).collect()
        }
        KIND_RETURNED => {
            let Returned { count, reserved, entries, .. } = Returned::of(message);
            if !(1..=MAX_RETURNED).contains(&usize::from(count)) || reserved != 0 {
                return Err("what gives buffers back is not as it must be".to_owned());
            }
            for entry in &entries[..usize::from(count)] {
                take(pair, entry.tag, is_faulty, Status::from_wire(entry.status))?;
            }
            Ok(Vec::new())
        }
        kind => Err(format!("an answer of kind {kind}")),
    }
}

/// A frame that has come without its addresses; or what is wrong.
fn compressed_frame(message: &Message, pair: &mut PairView, is_faulty: bool) -> Result<Vec<Vec<u8>>, String> {
    let Small { length_bytes, tag, bytes, .. } = Small::of(message);
    let length = usize::from(length_bytes);
    let is_sound = is_compressible(length) && bytes[length - ADDRESSES_BYTES..].iter().all(|byte| *byte == 0);
    let addresses = pair.addresses.filter(|_| is_sound).ok_or("a frame without addresses is not as it must be")?;
    let posted = take(pair, tag, is_faulty, None)?;
    if (posted.buffer.length_bytes as usize) < length {
        return Err("the buffer that a frame answers would not hold it".to_owned());
    }
    Ok(vec![[&addresses.to_bytes()[..], &bytes[..length - ADDRESSES_BYTES]].concat()])
}

/// A buffer is answered: with a frame, or given back with a status.
fn take(pair: &mut PairView, tag: u16, is_faulty: bool, status: Option<Status>) -> Result<Posted, String> {
    let expected = status.unwrap_or(Status::Ok);
    let is_it = |posted: &Posted| posted.buffer.tag == tag && posted.expected == expected;
    let at = pair
        .posted
        .iter()
        .position(is_it)
        .ok_or_else(|| format!("buffer {tag} is answered ({expected:?}), and is not posted so"))?;
    // A correct client's buffers are all usable: they are taken in the order in which they were posted.
    if !is_faulty && at > 0 {
        return Err(format!("buffer {tag} is answered before {at} others that were posted before"));
    }
    pair.posted.remove(at).ok_or_else(|| "it was there".to_owned())
}

/// Tags that a message of the daemon answers.
pub(super) fn tags(message: &Message) -> Vec<u16> {
    match first_byte(message) {
        KIND_RECEIVED_SMALL | KIND_RECEIVED_COMPRESSED => vec![Small::of(message).tag],
        KIND_RECEIVED_PACKED => FilledPacked::of(message).named().unwrap_or_default().iter().map(|frame| frame.tag).collect(),
        KIND_RECEIVED => {
            let filled = Filled::of(message);
            filled.tags[..usize::from(filled.count)].to_vec()
        }
        _ => {
            let returned = Returned::of(message);
            returned.entries[..usize::from(returned.count)].iter().map(|entry| entry.tag).collect()
        }
    }
}
