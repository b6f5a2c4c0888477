//! The effect of each message of the hypervisor.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fipsee_virtio::blk::config;
use fipsee_virtio::core::inflight::InflightArea;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory, MAX_REGIONS, RegionDescription};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_CONFIG_WCE;
use zerocopy::IntoBytes;

use super::{Action, Device, Model, PROTOCOL_FEATURES};
use crate::transport::vhost_user::message::{ConfigRange, Header, Inflight, LogArea, Message, VringState};
use crate::transport::vhost_user::vring::{MAX_SIZE, UserRings, Vring};

const MQ: u64 = 1 << 0;
const LOG_SHMFD: u64 = 1 << 1;
const REPLY_ACK: u64 = 1 << 3;
const BACKEND_REQ: u64 = 1 << 5;
const CONFIG: u64 = 1 << 9;
const INFLIGHT_SHMFD: u64 = 1 << 12;
const RESET_DEVICE: u64 = 1 << 13;
const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
const RARP: u64 = 1 << 2;
const NET_MTU: u64 = 1 << 4;
/// Protocol features that every device offers.
const PROTOCOL_OFFERED: u64 =
    MQ | LOG_SHMFD | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;

/// Requests that have an answer of their own; the others are acknowledged.
const ANSWERED: &str = "GET_FEATURES GET_PROTOCOL_FEATURES GET_QUEUE_NUM GET_MAX_MEM_SLOTS GET_CONFIG GET_INFLIGHT_FD \
    GET_VRING_BASE SET_LOG_BASE";

fn feature_of(request: &str) -> u64 {
    match request {
        "GET_QUEUE_NUM" => MQ,
        "SET_LOG_BASE" => LOG_SHMFD,
        "SET_BACKEND_REQ_FD" => BACKEND_REQ,
        "GET_CONFIG" | "SET_CONFIG" => CONFIG,
        "GET_INFLIGHT_FD" | "SET_INFLIGHT_FD" => INFLIGHT_SHMFD,
        "RESET_DEVICE" => RESET_DEVICE,
        "SEND_RARP" => RARP,
        "NET_SET_MTU" => NET_MTU,
        "GET_MAX_MEM_SLOTS" | "ADD_MEM_REG" | "REM_MEM_REG" => CONFIGURE_MEM_SLOTS,
        _ => 0,
    }
}

impl Device {
    /// Protocol features that are offered.
    pub(in super::super) const fn protocol_offered(&self) -> u64 {
        match self.model {
            Model::Disk(_) => PROTOCOL_OFFERED,
            Model::Port(_) => PROTOCOL_OFFERED | RARP | NET_MTU,
        }
    }

    /// Does NEED_REPLY of a message apply?
    pub(super) const fn replies_are_wanted(&self) -> bool {
        self.asked_features && self.protocol_features & REPLY_ACK != 0
    }

    /// Start handling a message: the rest is done in steps.
    pub(super) fn begin(&mut self, message: Message) -> Result<(), String> {
        let (header, name) = (message.header, message.header.name());
        let is_answered = ANSWERED.split(' ').any(|answered| answered == name);
        self.unconfirmed = (!is_answered).then_some(header);
        let missing = feature_of(name) & !self.protocol_features;
        if missing != 0 {
            return Err(format!("it belongs to protocol features {missing:#x}, which are not in force"));
        }
        match name {
            "GET_FEATURES" => {
                self.reply_number(&message, self.offered())?;
                self.asked_features = true;
            }
            "GET_PROTOCOL_FEATURES" => self.reply_number(&message, self.protocol_offered())?,
            "GET_QUEUE_NUM" => self.reply_number(&message, self.model.queue_number(self.queue_count()).into())?,
            "GET_MAX_MEM_SLOTS" => self.reply_number(&message, MAX_REGIONS as u64)?,
            "GET_CONFIG" => {
                let (range, _) = message.config()?;
                self.reply(header, &[range.as_bytes(), &self.config_space(range)].concat());
            }
            "GET_INFLIGHT_FD" => self.create_inflight(header, message.plain()?)?,
            "GET_VRING_BASE" => self.give_back(header, message.plain::<VringState>()?.index)?,
            "SET_LOG_BASE" => {
                let (area, file) = message.with_descriptor::<LogArea>()?;
                let log = DirtyLog::map(file, area.length_bytes, area.offset_bytes);
                self.log = Some(Arc::new(log.map_err(|error| format!("the log of writes cannot be mapped: {error}"))?));
                self.set_logs();
                self.then(move |device| device.reply(header, area.as_bytes()));
            }
            _ => {
                self.set(message)?;
                self.then(|device| device.confirm(0));
            }
        }
        Ok(())
    }

    /// Answer a message that is only a header.
    fn reply_number(&mut self, message: &Message, number: u64) -> Result<(), String> {
        message.empty()?;
        self.reply(message.header, &number.to_le_bytes());
        Ok(())
    }

    fn reply(&mut self, header: Header, body: &[u8]) {
        self.actions.push(Action::Reply(header.reply(body), None));
    }

    /// Messages that set something, acknowledged when it has taken effect.
    fn set(&mut self, message: Message) -> Result<(), String> {
        match message.header.name() {
            "SET_OWNER" => {
                message.empty()?;
                self.begin_session();
            }
            "RESET_OWNER" | "RESET_DEVICE" => {
                message.empty()?;
                self.reset();
            }
            "SET_FEATURES" => {
                self.acked_features = message.plain()?;
                self.set_features(self.acked_features)?;
            }
            "SET_PROTOCOL_FEATURES" => {
                let features: u64 = message.plain()?;
                let unknown = features & !self.protocol_offered();
                if unknown != 0 {
                    return Err(format!("protocol features {unknown:#x} are not offered"));
                }
                self.protocol_features = features;
            }
            "SEND_RARP" => {
                let [mac @ .., _, _] = message.plain::<[u8; 8]>()?;
                self.then(move |device| device.act(Action::SendRarp(1, mac)));
            }
            "NET_SET_MTU" => self.check_mtu(message.plain()?)?,
            "SET_BACKEND_REQ_FD" => self.channel = Some(message.channel()?),
            "SET_CONFIG" => {
                let (range, bytes) = message.config()?;
                self.write_config_space(range, bytes)?;
            }
            "SET_INFLIGHT_FD" => {
                let (inflight, file) = message.with_descriptor()?;
                self.set_inflight(&inflight, file)?;
            }
            "SET_MEM_TABLE" => {
                let mut regions = message.regions()?.into_iter();
                let with = |memory: GuestMemory, (region, file)| memory.with(region, file);
                self.change_memory(regions.try_fold(GuestMemory::default(), with)?);
            }
            "ADD_MEM_REG" => {
                let (region, file) = message.added_region()?;
                if !self.is_repeated(region, true) {
                    self.change_memory(self.memory.with(region, file)?);
                }
            }
            "REM_MEM_REG" => {
                let region = message.removed_region()?;
                if !self.is_repeated(region, false) {
                    self.change_memory(self.memory.without(region)?);
                }
            }
            _ => return self.set_vring(message),
        }
        Ok(())
    }

    fn set_vring(&mut self, message: Message) -> Result<(), String> {
        let name = message.header.name();
        match name {
            "SET_VRING_NUM" => {
                let VringState { index, value } = message.plain()?;
                self.change_vring(index, move |vring| vring.set_size(value))?;
            }
            "SET_VRING_BASE" => {
                let VringState { index, value } = message.plain()?;
                let base = u16::try_from(value).map_err(|_| "the base of a queue has 16 bits".to_owned())?;
                self.change_vring(index, move |vring| {
                    vring.next_available = base;
                    Ok(())
                })?;
            }
            "SET_VRING_ADDR" => {
                let address = message.vring_address()?;
                self.set_rings(self.find(address.index)?, UserRings::from(address));
            }
            "SET_VRING_ENABLE" => {
                let VringState { index, value } = message.plain()?;
                // QEMU enables the queues of a port before its guest has chosen features.
                let is_early = self.asked_features && self.model.port().is_some();
                if (self.acked_features & PROTOCOL_FEATURES == 0 && !is_early) || value > 1 {
                    return Err("invalid parameters".to_owned());
                }
                let queue = self.find(index)?;
                self.vring(queue).enabled = value == 1;
                if value == 1 { self.start(queue) } else { self.stop(queue) }
            }
            "SET_VRING_KICK" | "SET_VRING_CALL" | "SET_VRING_ERR" => {
                let (index, descriptor) = message.vring_descriptor()?;
                let queue = self.find(index)?;
                match (name, descriptor) {
                    ("SET_VRING_KICK", None) => {
                        return Err("a queue without a kick descriptor is not supported; let the driver kick".to_owned());
                    }
                    ("SET_VRING_KICK", kick) => self.change_vring(index, |vring| {
                        vring.kick = kick;
                        Ok(())
                    })?,
                    ("SET_VRING_CALL", call) => self.set_call(queue, call)?,
                    (_, error) => self.vring(queue).error = error,
                }
            }
            _ => return Err("invalid message".to_owned()),
        }
        Ok(())
    }

    fn set_call(&mut self, queue: u16, call: Option<OwnedFd>) -> Result<(), String> {
        let copied = call.as_ref().map(OwnedFd::try_clone).transpose();
        let copied = copied.map_err(|error| format!("no descriptor is left: {error}"))?;
        self.vring(queue).call = call;
        if self.vring(queue).is_served() {
            self.act(Action::Change(queue, Box::new(move |server| server.set_call(copied))));
        }
        Ok(())
    }

    /// GET_VRING_BASE. Nothing of the queue is in flight; nor of the device, if it was the last queue.
    fn give_back(&mut self, header: Header, index: u32) -> Result<(), String> {
        let queue = self.find(index)?;
        self.stop(queue);
        self.then(move |device| {
            let vring = device.vring(queue);
            (vring.kick, vring.call) = (None, None);
            let state = VringState { index, value: vring.next_available.into() };
            // Others may write.
            if !device.vrings.iter().any(Vring::is_served) {
                device.actions.push(Action::EndClaim);
            }
            device.reply(header, state.as_bytes());
        });
        Ok(())
    }

    /// SET_OWNER. QEMU does not hang up when a device is unplugged from a running machine: the one plugged in later uses the same
    /// connection, and sends a new memory table.
    fn begin_session(&mut self) {
        self.reset();
        self.then(|device| {
            (device.inflight, device.log) = (None, None);
            device.change_memory(GuestMemory::default());
        });
    }

    /// Has ADD_MEM_REG or REM_MEM_REG of this region taken effect before? QEMU 7.2 sends each once for every pair of queues of a port.
    fn is_repeated(&self, region: RegionDescription, is_added: bool) -> bool {
        // What is removed is known by its addresses.
        let offset = |own: RegionDescription| if is_added { own.file_offset_bytes } else { region.file_offset_bytes };
        let is_it = |own: RegionDescription| RegionDescription { file_offset_bytes: offset(own), ..own } == region;
        let is_there = self.memory.regions().iter().any(|own| is_it(own.description));
        self.model.port().is_some() && is_there == is_added
    }

    /// An area for requests in flight, for the hypervisor to keep.
    fn create_inflight(&mut self, header: Header, wanted: Inflight) -> Result<(), String> {
        let Inflight { queues, size, .. } = wanted;
        if queues > self.queue_count() || u32::from(size) > MAX_SIZE {
            return Err(format!("requests in flight of {queues} queues of {size} are more than the device can have"));
        }
        let created = InflightArea::create(queues, size);
        let (area, file) = created.map_err(|error| format!("no area for requests in flight: {error}"))?;
        let inflight = Inflight { length_bytes: area.length_bytes(), offset_bytes: 0, queues, size, padding: 0 };
        self.actions.push(Action::Reply(header.reply(inflight.as_bytes()), Some(file)));
        Ok(())
    }

    fn set_inflight(&mut self, inflight: &Inflight, file: OwnedFd) -> Result<(), String> {
        if self.vrings.iter().any(Vring::is_served) {
            return Err("the area for requests in flight cannot change while queues run; stop them first".to_owned());
        }
        let Inflight { length_bytes, offset_bytes, queues, size, .. } = *inflight;
        let area = InflightArea::from_peer(file, length_bytes, offset_bytes, queues, size);
        self.inflight = Some(area.map_err(|error| format!("the area for requests in flight cannot be used: {error}"))?);
        Ok(())
    }

    /// A part of the configuration space; zeroes beyond its end, for drivers that know more fields.
    fn config_space(&self, range: ConfigRange) -> Vec<u8> {
        let [offset, length_bytes] = [range.offset, range.length_bytes].map(|value| usize::try_from(value).unwrap_or(0));
        let space = self.model.space(self.queue_count(), &self.writeback);
        space.into_iter().skip(offset).chain(std::iter::repeat(0)).take(length_bytes).collect()
    }

    /// NET_SET_MTU: the machine was given this one.
    fn check_mtu(&self, mtu: u64) -> Result<(), String> {
        match self.model.port() {
            Some(port) if mtu > port.mtu.into() => {
                Err(format!("an MTU of {mtu} is more than that of the network, {}; set host_mtu to that", port.mtu))
            }
            _ => Ok(()),
        }
    }

    /// A part of the configuration space is written: only the cache mode can change.
    fn write_config_space(&self, range: ConfigRange, bytes: &[u8]) -> Result<(), String> {
        let mut wanted = self.config_space(range);
        let place = usize::try_from(range.offset).ok().and_then(|offset| config::WRITEBACK_OFFSET.checked_sub(offset));
        let mode = place.and_then(|place| bytes.get(place).map(|mode| (place, *mode)));
        if let Some((place, mode)) = mode {
            wanted[place] = mode;
        }
        match mode {
            _ if matches!(self.model, Model::Port(_)) => Err("nothing of the configuration space can be written".to_owned()),
            _ if wanted != bytes => Err("only the cache mode of the configuration space can be written".to_owned()),
            Some((_, mode)) if self.features & 1 << VIRTIO_BLK_F_CONFIG_WCE != 0 => {
                self.writeback.store(mode != 0, Ordering::Relaxed);
                Ok(())
            }
            Some(_) => Err("the cache mode cannot be written: VIRTIO_BLK_F_CONFIG_WCE is not in force".to_owned()),
            None => Ok(()),
        }
    }
}
