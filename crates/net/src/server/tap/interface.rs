//! What the kernel is asked of an interface, by ioctl(2).

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, Setter, Updater};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::frame::Mac;

/// Without the zero at its end.
pub(super) const MAX_NAME_BYTES: usize = 15;

/// IFF_TAP | IFF_NO_PI | IFF_VNET_HDR: whole Ethernet frames, each behind a header of virtio-net.
pub(super) const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_UP: u16 = 1;
const ARPHRD_ETHER: u16 = 1;

const TUNSETIFF: Opcode = 0x4004_54ca;
const TUNGETIFF: Opcode = 0x8004_54d2;
const TUNSETVNETHDRSZ: Opcode = 0x4004_54d8;
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;
const TUNSETCARRIER: Opcode = 0x4004_54e2;
const SIOCGIFFLAGS: Opcode = 0x8913;
const SIOCSIFFLAGS: Opcode = 0x8914;
const SIOCGIFMTU: Opcode = 0x8921;
const SIOCSIFMTU: Opcode = 0x8922;
const SIOCSIFHWADDR: Opcode = 0x8924;
const SIOCGIFHWADDR: Opcode = 0x8927;
const SIOCGIFINDEX: Opcode = 0x8933;

/// The calls that a program makes of descriptors that it was passed, by their second argument.
pub const IOCTLS_OF_PASSED: [u32; 4] = [TUNGETIFF, TUNSETVNETHDRSZ, TUNSETOFFLOAD, TUNSETCARRIER];

/// `struct ifreq` of a 64-bit kernel: a name, and what the call is about.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
struct Request {
    name: [u8; 16],
    value: [u8; 24],
}

impl Request {
    fn new(name: &str) -> Self {
        let mut request = Self::default();
        let length = name.len().min(MAX_NAME_BYTES);
        request.name[..length].copy_from_slice(&name.as_bytes()[..length]);
        request
    }

    fn with(mut self, value: &[u8]) -> Self {
        self.value[..value.len()].copy_from_slice(value);
        self
    }

    fn name(&self) -> String {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }

    fn flags(&self) -> u16 {
        let [low, high, ..] = self.value;
        u16::from_ne_bytes([low, high])
    }
}

/// A call that takes such a request, and changes it.
fn ask<const OPCODE: Opcode>(fd: impl AsFd, mut request: Request) -> Result<Request, Errno> {
    // SAFETY: each number that this is called with is that of a call that reads and writes a `struct ifreq`, which `Request` is.
    let call = unsafe { Updater::<OPCODE, Request>::new(&mut request) };
    // SAFETY: as above; the request lives until the call has returned.
    unsafe { rustix::ioctl::ioctl(fd, call) }?;
    Ok(request)
}

/// Make this open `/dev/net/tun` a queue of the device, which is made if there is none.
pub(super) fn attach(file: &OwnedFd, name: &str, several: bool) -> Result<(), Errno> {
    let flags = FLAGS | if several { IFF_MULTI_QUEUE } else { 0 };
    ask::<TUNSETIFF>(file, Request::new(name).with(&flags.to_ne_bytes())).map(drop)
}

/// Name and flags of the device that this is a queue of.
pub(super) fn attached(file: &OwnedFd) -> Result<(String, u16), Errno> {
    // SAFETY: this call writes a `struct ifreq`, which `Request` is.
    let call = unsafe { Getter::<TUNGETIFF, Request>::new() };
    // SAFETY: likewise.
    let request: Request = unsafe { rustix::ioctl::ioctl(file, call) }?;
    Ok((request.name(), request.flags()))
}

/// The header of frames has 10 bytes.
pub(super) fn set_header_bytes(file: &OwnedFd) -> Result<(), Errno> {
    let bytes: i32 = 10;
    // SAFETY: this call reads an `int`.
    let call = unsafe { Setter::<TUNSETVNETHDRSZ, i32>::new(bytes) };
    // SAFETY: likewise.
    unsafe { rustix::ioctl::ioctl(file, call) }
}

/// The stack may leave this to the receivers of its frames: TUN_F_*, whose numbers are those of the wire.
pub(super) fn set_offloads(file: &OwnedFd, offloads: u32) -> Result<(), Errno> {
    // SAFETY: this call takes a number, and touches no memory.
    let call = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads as usize) };
    // SAFETY: likewise.
    unsafe { rustix::ioctl::ioctl(file, call) }
}

/// Has the device of this queue a carrier? Needs no right but the descriptor.
pub(super) fn set_carrier(file: &OwnedFd, is_there: bool) -> Result<(), Errno> {
    // SAFETY: this call reads an `int`.
    let call = unsafe { Setter::<TUNSETCARRIER, i32>::new(is_there.into()) };
    // SAFETY: likewise.
    unsafe { rustix::ioctl::ioctl(file, call) }
}

/// An interface, by its name.
pub(super) struct Interface {
    name: String,
    socket: OwnedFd,
}

impl Interface {
    pub(super) fn new(name: &str) -> Result<Self, Errno> {
        // Any socket takes these calls; a Unix one needs no protocol of the kernel's.
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { name: name.to_owned(), socket })
    }

    fn ask<const OPCODE: Opcode>(&self, value: &[u8]) -> Result<Request, Errno> {
        ask::<OPCODE>(&self.socket, Request::new(&self.name).with(value))
    }

    pub(super) fn exists(&self) -> bool {
        self.ask::<SIOCGIFINDEX>(&[]).is_ok()
    }

    pub(super) fn mtu(&self) -> Result<u16, Errno> {
        let [a, b, c, d, ..] = self.ask::<SIOCGIFMTU>(&[])?.value;
        u16::try_from(i32::from_ne_bytes([a, b, c, d])).map_err(|_| Errno::RANGE)
    }

    pub(super) fn set_mtu(&self, mtu: u16) -> Result<(), Errno> {
        self.ask::<SIOCSIFMTU>(&i32::from(mtu).to_ne_bytes()).map(drop)
    }

    pub(super) fn mac(&self) -> Result<Mac, Errno> {
        let [_, _, a, b, c, d, e, f, ..] = self.ask::<SIOCGIFHWADDR>(&[])?.value;
        Ok(Mac([a, b, c, d, e, f]))
    }

    pub(super) fn set_mac(&self, mac: Mac) -> Result<(), Errno> {
        self.ask::<SIOCSIFHWADDR>(&[&ARPHRD_ETHER.to_ne_bytes()[..], &mac.0].concat()).map(drop)
    }

    pub(super) fn set_up(&self) -> Result<(), Errno> {
        let flags = self.ask::<SIOCGIFFLAGS>(&[])?.flags();
        self.ask::<SIOCSIFFLAGS>(&(flags | IFF_UP).to_ne_bytes()).map(drop)
    }
}
