//! What both sides of the control plane do for every service: greet, attach, hand over the channel
//! (docs/protocol.md sections 4.3 to 4.5).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::{ClientQueue, Profile, RegionLayout, ServerQueue};
use crate::control::{
    Control, FEATURE_LIST, Listed, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, Malformed, Refusal, RefusalCode, SERVICE_INFO_BYTES,
    VERSION, Wanted,
};
use crate::doorbell::{EventDoorbell, SocketDoorbell};
use crate::error::Error;
use crate::fault::{PeerFault, expect};
use crate::region::{Access, Region};
use crate::seqpacket::{Packet, Seqpacket};

/// A client that connects must greet and attach within this time; it needs microseconds.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the daemon may take to answer a control message. It answers in microseconds unless the machine stalls or it
/// drains what is slow to finish.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Most entries of a list that are taken from a daemon; none serves so many.
const MAX_LIST: usize = 1 << 16;
/// The least length of a packet that was cut.
const TOO_LONG_BYTES: u64 = MAX_MESSAGE_BYTES as u64 + 1;

/// What a client holds once it is attached, all of it checked.
#[derive(Debug)]
pub struct AttachedChannel {
    pub control: Seqpacket,
    pub region: Arc<Region>,
    pub layout: RegionLayout,
    /// The service's own information; its crate checks it.
    pub service_info: [u8; SERVICE_INFO_BYTES],
    pub queues: Vec<ClientQueue>,
}

/// Connect to the daemon that listens at `socket_path`, offer the features `offered` and those that the flags need, and attach to
/// the service that `profile` describes.
pub fn attach<S>(socket_path: &Path, offered: u64, profile: &Profile, mut wanted: Wanted) -> Result<AttachedChannel, Error<S>> {
    if wanted.name.is_empty() || wanted.name.len() > MAX_NAME_BYTES {
        let text = format!("the name '{}' has {} bytes; a name has 1 to {MAX_NAME_BYTES}", wanted.name, wanted.name.len());
        return Err(Error::Refused { code: RefusalCode::UnknownName, text });
    }
    let needed = profile.flags.iter().filter(|rule| wanted.flags & rule.flag != 0);
    let offered = needed.fold(offered, |features, rule| features | rule.feature);
    let Greeted { control, features, .. } = greet(socket_path, offered)?;
    let (queue_count, flags) = (wanted.queue_count, wanted.flags);
    for rule in profile.flags.iter().filter(|rule| flags & rule.flag != 0 && features & rule.feature == 0) {
        match rule.unsupported {
            Some(what) => return Err(Error::Unsupported(what)),
            None => wanted.flags &= !rule.flag,
        }
    }
    let (answer, descriptors) = ask(&control, &Control::Attach(wanted), &[], "the request to attach")?;
    let Control::Attached { queue_count: granted, region_bytes, service_info } = answer else {
        return Err(unexpected(&answer));
    };
    if granted == 0 || granted > queue_count {
        let (value, limit) = (granted.into(), queue_count.into());
        return Err(PeerFault::Count { what: "queues granted", value, limit }.into());
    }
    let (region, layout, queues) = open(profile, granted, region_bytes, descriptors)?;
    expect("the features of the region", layout.features, layout.features == features)?;
    Ok(AttachedChannel { control, region, layout, service_info, queues })
}

/// What a daemon that was greeted announces.
#[derive(Debug)]
pub struct Greeted {
    pub control: Seqpacket,
    /// Those in force.
    pub features: u64,
    /// Most queues of a client.
    pub max_queues: u16,
}

/// Connect and offer features.
///
/// # Errors
/// As [`attach`].
pub fn greet<S>(socket_path: &Path, offered: u64) -> Result<Greeted, Error<S>> {
    let control = Seqpacket::connect(socket_path);
    let control = control.map_err(|source| Error::Connect { path: socket_path.to_owned(), source })?;
    let hello = Control::Hello { version_min: VERSION, version_max: VERSION, features: offered };
    let (answer, _) = ask(&control, &hello, &[], "the greeting")?;
    let Control::Welcome { version, features, max_queues, .. } = answer else {
        return Err(unexpected(&answer));
    };
    expect("the protocol version", version, version == VERSION)?;
    expect("features we did not offer", features & !offered, features & !offered == 0)?;
    Ok(Greeted { control, features, max_queues })
}

/// What this user may attach to of a service of the daemon at `socket_path`, in the order of the names' bytes.
///
/// # Errors
/// As [`attach`]; [`Error::Unsupported`] when the daemon is too old.
pub fn list<S>(socket_path: &Path, service: u16) -> Result<Vec<Listed>, Error<S>> {
    let Greeted { control, features, .. } = greet(socket_path, FEATURE_LIST)?;
    if features & FEATURE_LIST == 0 {
        return Err(Error::Unsupported("request for a list"));
    }
    let (mut found, mut after): (Vec<Listed>, _) = (Vec::new(), String::new());
    loop {
        let request = Control::List { service, after: after.clone() };
        let (answer, _) = ask(&control, &request, &[], "the request for a list")?;
        let Control::Listed(page) = answer else { return Err(unexpected(&answer)) };
        let is_progress = !page.entries.is_empty() || !page.more;
        expect("an entry count of a list that goes on", 0_u64, is_progress)?;
        for listed in page.entries {
            expect("the place of a name in its sorted list", found.len() as u64, listed.name > after)?;
            after.clone_from(&listed.name);
            found.push(listed);
        }
        if found.len() > MAX_LIST {
            let (value, limit) = (found.len() as u64, MAX_LIST as u64);
            return Err(PeerFault::Count { what: "entries of a list", value, limit }.into());
        }
        if !page.more {
            return Ok(found);
        }
    }
}

/// Check the channel that the daemon handed over and open our end of it.
fn open<S>(
    profile: &Profile,
    queue_count: u16,
    region_bytes: u64,
    descriptors: Vec<OwnedFd>,
) -> Result<(Arc<Region>, RegionLayout, Vec<ClientQueue>), Error<S>> {
    let expected = 1 + 2 * usize::from(queue_count);
    let given = descriptors.len();
    let mut descriptors = descriptors.into_iter();
    let Some(file) = descriptors.next().filter(|_| given == expected) else {
        return Err(PeerFault::Count { what: "descriptors", value: given as u64, limit: expected as u64 }.into());
    };
    let region = Arc::new(Region::from_peer(file, region_bytes, Access::ReadWrite)?);
    let layout = RegionLayout::read_from(profile, &region)?;
    if layout.queues.len() != usize::from(queue_count) {
        let value = layout.queues.len() as u64;
        return Err(PeerFault::Count { what: "queues in the region", value, limit: queue_count.into() }.into());
    }
    region.populate(layout.populated_bytes());
    let mut queues = Vec::with_capacity(layout.queues.len());
    for geometry in &layout.queues {
        if let (Some(daemon_doorbell), Some(our_doorbell)) = (descriptors.next(), descriptors.next()) {
            let (daemon_doorbell, our_doorbell) =
                (EventDoorbell::from_fd(daemon_doorbell), SocketDoorbell::from_fd(our_doorbell));
            queues.push(ClientQueue::open(&region, geometry, daemon_doorbell, our_doorbell, &geometry.tuning())?);
        }
    }
    Ok((region, layout, queues))
}

/// Send a control message and await the answer, with its descriptors; `what` names the request in errors.
///
/// # Errors
/// As [`attach`], but `Connect`. After `TimedOut` the connection is closed: a late answer must not be taken for
/// another's.
pub fn ask<S>(
    control: &Seqpacket,
    request: &Control,
    descriptors: &[BorrowedFd<'_>],
    what: &'static str,
) -> Result<(Control, Vec<OwnedFd>), Error<S>> {
    let gone = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::Disconnected,
        io::ErrorKind::TimedOut => {
            give_up(control);
            Error::TimedOut(what)
        }
        // Longer than any message may be: this is not a shortage of the machine.
        io::ErrorKind::InvalidData => Malformed { what: "the length in bytes, at least", value: TOO_LONG_BYTES }.into(),
        _ => Error::Io { context: "talk to the daemon", source },
    };
    // A refusal may already be waiting when the daemon hangs up, so the answer says why a send failed.
    let sent = control.send(&request.encode(), descriptors);
    let packet: Packet = match (control.receive(ANSWER_TIMEOUT), sent) {
        (Ok(packet), _) => packet,
        (Err(_), Err(source)) | (Err(source), Ok(())) => return Err(gone(source)),
    };
    let answer = Control::decode(&packet.bytes)?;
    if !packet.descriptors.is_empty() && !matches!(answer, Control::Attached { .. }) {
        let value = packet.descriptors.len() as u64;
        return Err(Malformed { what: "the number of descriptors of a message that has none", value }.into());
    }
    match answer {
        Control::Refused(Refusal { code, text }) => Err(Error::Refused { code, text }),
        // Unasked: the daemon is shutting down and let us go.
        Control::Detached if *request != Control::Detach => Err(Error::Disconnected),
        answer => Ok((answer, packet.descriptors)),
    }
}

/// No request of this connection is answered any more: a late answer would be taken for that of a later request, and
/// memory would be taken for registered that is not.
#[cold]
fn give_up(control: &Seqpacket) {
    // Either end may have closed it already.
    let _ = rustix::net::shutdown(control, rustix::net::Shutdown::Both);
    while let Ok(Some(_)) = control.try_receive() {}
}

/// The daemon sent a message of a kind that answers something else.
pub fn unexpected<S>(message: &Control) -> Error<S> {
    PeerFault::Value { what: "the kind of an answer", value: message.kind().0.into() }.into()
}

pub fn refuse(code: RefusalCode, text: impl Into<String>) -> Refusal {
    Refusal { code, text: text.into() }
}

/// A fresh channel: what the daemon hands to a client, and its own end of every queue.
#[derive(Debug)]
pub struct Grant {
    pub region: Arc<Region>,
    pub layout: RegionLayout,
    /// The daemon's ends, in the order of the table.
    pub queues: Vec<ServerQueue>,
    /// The doorbells as the client gets them.
    client_ends: Vec<(EventDoorbell, SocketDoorbell)>,
}

impl Grant {
    /// Make the channel that `layout` describes; `place` may choose the NUMA node of its memory before it is first touched.
    pub fn new(layout: RegionLayout, place: impl FnOnce(&Arc<Region>)) -> Result<Self, Refusal> {
        let scarce = |what: &str, error: &dyn fmt::Display| {
            let text = format!(
                "the daemon cannot create {what}: {error}; raise its limits (LimitNOFILE=, memory) or detach other clients"
            );
            refuse(RefusalCode::Limit, text)
        };
        let region = Region::create("fipsee-channel", layout.region_bytes);
        let region = Arc::new(region.map_err(|error| scarce("the channel's memory", &error))?);
        place(&region);
        region.populate(layout.populated_bytes());
        layout.write_to(&region).map_err(|fault| scarce("the channel", &fault))?;
        let (mut queues, mut client_ends) = (Vec::new(), Vec::new());
        for geometry in &layout.queues {
            let doorbell = EventDoorbell::new().map_err(|error| scarce("a doorbell", &error))?;
            let (client_doorbell, client_end) = SocketDoorbell::pair().map_err(|error| scarce("a doorbell", &error))?;
            let queue = ServerQueue::open(&region, geometry, doorbell.clone(), client_doorbell, &geometry.tuning());
            queues.push(queue.map_err(|fault| scarce("a queue", &fault))?);
            client_ends.push((doorbell, client_end));
        }
        Ok(Self { region, layout, queues, client_ends })
    }

    /// The ATTACHED that goes with it.
    pub fn attached(&self, service_info: [u8; SERVICE_INFO_BYTES]) -> Control {
        let queue_count = u16::try_from(self.layout.queues.len()).unwrap_or(u16::MAX);
        Control::Attached { queue_count, region_bytes: self.layout.region_bytes, service_info }
    }

    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let doorbells = self.client_ends.iter().flat_map(|(doorbell, client_end)| [doorbell.as_fd(), client_end.as_fd()]);
        std::iter::once(self.region.as_fd()).chain(doorbells).collect()
    }
}
