//! The hypervisor's half of vhost-user, message by message, by its specification.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fipsee_daemon::transport::vhost_user::message::{HEADER_BYTES, Header, Message};
use fipsee_ring::region::Region;

use super::driver::Driver;
use crate::context::Context;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;
const NEED_REPLY: u32 = 8;
/// MQ, REPLY_ACK, INFLIGHT_SHMFD.
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 12;
/// VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_BLK_F_FLUSH.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 9;
/// Where the hypervisor sees guest-physical address 0.
const USER: u64 = 0x5000_0000_0000;

/// What is to be said next. Its values are those of the time when it is said.
#[derive(Clone, Copy, Debug)]
pub(super) enum Say {
    Number(u32, Option<u64>),
    NewInflight,
    Inflight,
    Memory,
    Vring(u32, u16),
    /// Nothing: the driver makes its rings anew.
    ResetDriver,
}

/// The hypervisor.
pub(super) struct Hypervisor {
    pub(super) to_say: VecDeque<Say>,
    /// Code and queue of the message that is not answered.
    pub(super) awaited: Option<(u32, u16)>,
    /// The area that it keeps for the daemon, and what the daemon said of it.
    pub(super) inflight: Option<(OwnedFd, Vec<u8>)>,
    features: u64,
    queues: u16,
    size: u16,
}

impl Hypervisor {
    pub(super) fn new(features: u64, queues: u16, size: u16) -> Self {
        Self { to_say: VecDeque::new(), awaited: None, inflight: None, features: features | FEATURES, queues, size }
    }

    /// A new connection: everything is said anew.
    pub(super) fn connect(&mut self) {
        self.awaited = None;
        self.to_say.clear();
        let features = [(GET_FEATURES, None), (SET_PROTOCOL_FEATURES, Some(PROTOCOL_FEATURES)), (SET_OWNER, None)];
        self.to_say.extend(features.map(|(code, value)| Say::Number(code, value)));
        self.to_say.push_back(Say::Number(SET_FEATURES, Some(self.features)));
        self.to_say.extend([if self.inflight.is_none() { Say::NewInflight } else { Say::Inflight }, Say::Memory]);
        self.start_all();
    }

    fn start_all(&mut self) {
        for queue in 0..self.queues {
            let codes =
                [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR, SET_VRING_CALL, SET_VRING_ERR, SET_VRING_KICK, SET_VRING_ENABLE];
            self.to_say.extend(codes.map(|code| Say::Vring(code, queue)));
        }
    }

    /// Stop all queues; `resets`: the guest has reset the device. Then start them again.
    pub(super) fn restart(&mut self, resets: bool) {
        self.to_say.extend((0..self.queues).map(|queue| Say::Vring(GET_VRING_BASE, queue)));
        if resets {
            self.to_say.extend([Say::ResetDriver, Say::NewInflight]);
        }
        self.start_all();
    }

    pub(super) fn set_memory(&mut self) {
        self.to_say.push_back(Say::Memory);
    }

    pub(super) fn set_calls(&mut self) {
        self.to_say.extend((0..self.queues).map(|queue| Say::Vring(SET_VRING_CALL, queue)));
    }

    /// The message that says this.
    pub(super) fn message(&mut self, say: Say, ram: &Arc<Region>, drivers: &[Driver]) -> Option<Message> {
        let copy = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        let (code, queue, body, descriptors) = match say {
            Say::ResetDriver => return None,
            Say::Number(code, value) => (code, 0, value.map_or_else(Vec::new, |value| value.to_le_bytes().to_vec()), vec![]),
            Say::NewInflight => {
                let wanted = [self.queues.to_le_bytes(), self.size.to_le_bytes(), [0; 2], [0; 2]].concat();
                self.inflight = None;
                self.to_say.push_front(Say::Inflight);
                (GET_INFLIGHT_FD, 0, [vec![0; 16], wanted].concat(), vec![])
            }
            Say::Inflight => {
                let (file, body) = self.inflight.as_ref()?;
                (SET_INFLIGHT_FD, 0, body.clone(), vec![copy(file)])
            }
            Say::Memory => {
                let region = [0, ram.length_bytes(), USER, 0].map(u64::to_le_bytes).concat();
                let file = ram.as_fd().try_clone_to_owned().expect("a descriptor");
                (SET_MEM_TABLE, 0, [1_u64.to_le_bytes().to_vec(), region].concat(), vec![file])
            }
            Say::Vring(code, queue) => {
                let driver = &drivers[usize::from(queue)];
                let state = |value: u16| [u32::from(queue), value.into()].map(u32::to_le_bytes).concat();
                let (body, descriptors) = match code {
                    SET_VRING_NUM => (state(self.size), vec![]),
                    SET_VRING_BASE => (state(driver.used_index()), vec![]),
                    SET_VRING_ENABLE => (state(1), vec![]),
                    SET_VRING_ADDR => {
                        let addresses = driver.addresses().map(|address| (USER + address).to_le_bytes()).concat();
                        ([state(0), addresses, vec![0; 8]].concat(), vec![])
                    }
                    GET_VRING_BASE => (state(0), vec![]),
                    SET_VRING_KICK => (u64::from(queue).to_le_bytes().to_vec(), vec![copy(&driver.kick)]),
                    SET_VRING_CALL => (u64::from(queue).to_le_bytes().to_vec(), vec![copy(&driver.call)]),
                    _ => (u64::from(queue).to_le_bytes().to_vec(), vec![copy(&driver.error)]),
                };
                (code, queue, body, descriptors)
            }
        };
        self.awaited = Some((code, queue));
        let length = u32::try_from(body.len()).expect("short");
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&[code, 1 | NEED_REPLY, length].map(u32::to_le_bytes).concat());
        Some(Message { header: Header::parse(header).0, body, descriptors })
    }

    /// An answer of the back end.
    pub(super) fn answered(&mut self, bytes: &[u8], file: Option<OwnedFd>, drivers: &[Driver], context: &Context) {
        let (header, body) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
        let Some((code, queue)) = self.awaited.take().filter(|(code, _)| header.starts_with(&code.to_le_bytes())) else {
            return context.violated(|| format!("nothing was asked that {bytes:?} answers"));
        };
        match (code, file) {
            (GET_FEATURES, None) => {
                let offered = body.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                if self.features & !offered != 0 {
                    context.violated(|| format!("features {offered:#x} are offered"));
                }
            }
            (GET_INFLIGHT_FD, Some(file)) => self.inflight = Some((file, body.to_vec())),
            (GET_VRING_BASE, None) => {
                let driver = &drivers[usize::from(queue)];
                let expected = [u32::from(queue), driver.used_index().into()].map(u32::to_le_bytes).concat();
                if body != expected && !driver.has_misbehaved {
                    let used = driver.used_index();
                    context.violated(|| {
                        format!("queue {queue} is given back at {body:?} with something in flight: {used} are used")
                    });
                }
            }
            _ if body == [0; 8] => {}
            (code, _) => context.violated(|| format!("request {code} is answered by {body:?}")),
        }
    }
}
