//! TAP devices: interfaces of the host's network stack whose frames a program takes and gives through descriptors. A worker serves each
//! descriptor as a queue ([`TapQueue`]), and gives frames to it ([`TapReceiver`]).

mod interface;
mod queue;

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use self::interface::IOCTLS_OF_PASSED;
use self::interface::Interface;
pub use self::queue::{TapEnd, TapQueue, TapReceiver};
use super::Holder;
use crate::frame::Mac;

/// Most queues of a device that a port uses.
pub const MAX_QUEUES: u16 = crate::wire::MAX_PAIRS;
const DEVICE: &CStr = c"/dev/net/tun";

/// What an interface is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mtu: u16,
    /// `None`: whatever it has.
    pub mac: Option<Mac>,
    /// It is brought up.
    pub up: bool,
}

/// A device, open: a descriptor for each of its queues.
#[derive(Debug)]
pub struct Tap {
    pub name: String,
    /// None: the device is gone, and a port is still its.
    pub queues: Vec<OwnedFd>,
    /// It was made when it was opened, and goes with its last descriptor.
    pub is_new: bool,
}

impl Tap {
    /// One that was deleted.
    pub const fn gone(name: String) -> Self {
        Self { name, queues: Vec::new(), is_new: false }
    }

    /// As what has a port.
    pub fn holder(&self) -> Holder {
        Holder::Device(self.name.as_str().into())
    }
}

/// A name that an interface may have.
///
/// # Errors
/// In words.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_possible = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
    let is_short = (1..=interface::MAX_NAME_BYTES).contains(&name.len());
    match is_short && name != "." && name != ".." && name.bytes().all(is_possible) {
        true => Ok(()),
        false => Err(format!("'{name}' cannot be the name of a device; write 1 to 15 ASCII characters without /, : and %")),
    }
}

fn interface(name: &str) -> Result<Interface, String> {
    Interface::new(name).map_err(|error| format!("device '{name}': there is no socket to set it up with: {error}"))
}

/// Open the device with so many queues, and make it if there is none.
///
/// # Errors
/// In words: who may open it, what it must be.
pub fn open(name: &str, queues: u16) -> Result<Tap, String> {
    check_name(name)?;
    let is_new = !interface(name)?.exists();
    let several = queues > 1;
    let open = |_| {
        let failed = |error: Errno| not_opened(name, error, is_new, several);
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(failed)?;
        interface::attach(&file, name, several).map_err(failed)?;
        Ok(file)
    };
    let queues = (0..queues).map(open).collect::<Result<Vec<OwnedFd>, String>>()?;
    Ok(Tap { name: name.to_owned(), queues, is_new })
}

fn not_opened(name: &str, error: Errno, is_new: bool, several: bool) -> String {
    let advice = match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            "this kernel has no TUN/TAP devices, or /dev/net/tun is missing; load the module tun"
        }
        Errno::PERM | Errno::ACCESS => {
            "this needs CAP_NET_ADMIN, or a device of this user: ip tuntap add NAME mode tap user USER"
        }
        Errno::BUSY => "another program has it open; end that, or use another device",
        Errno::INVAL if !is_new && several => "it is no TAP device of several queues; make it with multi_queue, or use one queue",
        Errno::INVAL if !is_new => "it is no TAP device of one queue; remove it, or use another one",
        _ => "`ip tuntap list` shows the devices that are there",
    };
    format!("device '{name}' cannot be opened: {error}; {advice}")
}

/// Have an interface be so, where it is not.
///
/// # Errors
/// In words, with a command that does it.
pub fn set_up(name: &str, Settings { mtu, mac, up }: Settings) -> Result<(), String> {
    let interface = interface(name)?;
    let failed = |what: &str, to: String, error: Errno| {
        format!("device '{name}' cannot have {what}: {error}; have root do it: ip link set dev {name} {to}")
    };
    if interface.mtu() != Ok(mtu) {
        interface.set_mtu(mtu).map_err(|error| failed("the network's MTU", format!("mtu {mtu}"), error))?;
    }
    if let Some(mac) = mac.filter(|mac| interface.mac() != Ok(*mac)) {
        interface.set_mac(mac).map_err(|error| failed("the port's address", format!("address {mac}"), error))?;
    }
    if up {
        interface.set_up().map_err(|error| failed("its state", "up".to_owned(), error))?;
    }
    Ok(())
}

/// A device that another process has opened, by the descriptors of its queues.
///
/// # Errors
/// In words: it is none, or not opened as it must be.
pub fn passed(queues: Vec<OwnedFd>) -> Result<Tap, String> {
    let mut names = queues.iter().map(check_passed).collect::<Result<Vec<_>, _>>()?;
    names.dedup();
    match <[String; 1]>::try_from(names) {
        Ok([name]) => Ok(Tap { name, queues, is_new: false }),
        Err(names) if names.is_empty() => Err("no descriptor of a device was passed".to_owned()),
        Err(names) => Err(format!("the descriptors are of different devices: {}; pass those of one", names.join(", "))),
    }
}

/// The name of its device.
fn check_passed(queue: &OwnedFd) -> Result<String, String> {
    let advice = "open /dev/net/tun with TUNSETIFF and IFF_TAP | IFF_NO_PI | IFF_VNET_HDR";
    let (name, flags) =
        interface::attached(queue).map_err(|error| format!("the descriptor is of no TAP device: {error}; {advice}"))?;
    if flags & interface::FLAGS != interface::FLAGS {
        return Err(format!("the descriptor of device '{name}' was opened with flags {flags:#x}; {advice}"));
    }
    let set = interface::set_header_bytes(queue).and_then(|()| {
        let flags = rustix::fs::fcntl_getfl(queue.as_fd())?;
        rustix::fs::fcntl_setfl(queue.as_fd(), flags | OFlags::NONBLOCK)
    });
    set.map_err(|error| format!("the descriptor of device '{name}' cannot be set up: {error}; {advice}"))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_are_checked() {
        for name in ["tap0", "a", "fip-lan.h", "abcdefghijklmno"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a:1", "tap%d", "a b", "abcdefghijklmnop", "\u{e4}"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_no_device_is_refused_with_the_reason() {
        let file: OwnedFd = std::fs::File::open("/dev/null").expect("it is there").into();
        let text = passed(vec![file]).expect_err("no device");
        assert!(text.contains("of no TAP device") && text.contains("IFF_VNET_HDR"), "{text}");
        assert!(passed(Vec::new()).is_err());
    }
}
