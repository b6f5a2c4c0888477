//! Ports of a network by section 10 of the document alone: clients in bytes send what comes to mind, and a model of the document's
//! rules says how each frame is answered, which port receives it, in which buffers, and as what.

use std::collections::{HashMap, VecDeque};

use fipsee_testkit::bytes::*;
use fipsee_testkit::random::Random;
use fipsee_testkit::{Daemon, Scratch};

use super::client::Client;

const DEPTH: u16 = 16;
const POOL_BYTES: u64 = 256 << 10;
const MTU: usize = 1500;
/// Where the rest of a frame that is sent is, and from where on there are receive buffers, in the pool.
const REST: u32 = 0;
const BUFFERS: u32 = 4096;
const TAG: [u8; 2] = [0x81, 0];

const FILE: &str = "
[[network]]
name = \"lan\"
[[network.port]]
name = \"a\"
mac = \"02:00:00:00:00:00\"
vlan = 10
[[network.port]]
name = \"b\"
mac = \"02:00:00:00:00:01\"
vlan = 10
isolated = true
[[network.port]]
name = \"c\"
mac = \"02:00:00:00:00:02\"
trunk = [10, 20]
vlan = 30
any_source = true
[[network.port]]
name = \"d\"
mac = \"02:00:00:00:00:03\"
vlan = 20
any_source = true
[[network.port]]
name = \"e\"
mac = \"02:00:00:00:00:04\"
trunk = [20, 10]
isolated = true
";

/// As configured: VLANs that are taken with a tag, that of frames without one, and whether any source is taken.
#[derive(Clone, Copy)]
struct Rules {
    tagged: &'static [u16],
    plain: Option<u16>,
    any_source: bool,
    isolated: bool,
}

const RULES: [Rules; 5] = [
    Rules { tagged: &[], plain: Some(10), any_source: false, isolated: false },
    Rules { tagged: &[], plain: Some(10), any_source: false, isolated: true },
    Rules { tagged: &[10, 20], plain: Some(30), any_source: true, isolated: false },
    Rules { tagged: &[], plain: Some(20), any_source: true, isolated: false },
    Rules { tagged: &[10, 20], plain: None, any_source: false, isolated: true },
];

/// A buffer that was posted: its tag, its place in the pool and its length.
type Posted = (u16, u32, u32);

struct Port {
    client: Client,
    /// Of each pair, the oldest first.
    posted: Vec<VecDeque<Posted>>,
    /// Of each pair, those that a message of kind 5 refers to.
    addresses: Vec<Option<[u8; 12]>>,
    next_tag: u16,
}

/// How a frame is sent.
#[derive(Clone, Debug)]
struct Message {
    bytes: [u8; 60],
    /// What its bytes say, if that is a frame.
    frame: Vec<u8>,
    status: u16,
}

const fn mac(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, port.to_le_bytes()[0]]
}

fn small(random: &mut Random, below: usize) -> usize {
    usize::try_from(random.below(below as u64)).expect("small")
}

impl Port {
    fn attach(daemon: &Daemon, number: usize) -> Self {
        let name = format!("lan/{}", ["a", "b", "c", "d", "e"][number]);
        // One of them has two pairs.
        let queues = if number == 1 { 4 } else { 2 };
        let wanted = Wanted { service: 3, queues, depth: DEPTH.into(), flags: 0, pool_bytes: POOL_BYTES, name: name.as_bytes() };
        let client = Client::attach(daemon, &wanted);
        let info = client.info();
        let vlan = if RULES[number].tagged.is_empty() { RULES[number].plain } else { None };
        assert_eq!((&info[..6], u16_at(info, 6), u32_at(info, 8)), (&mac(number)[..], 1500, 1518), "{info:02x?}");
        assert_eq!((u32_at(info, 12), u16_at(info, 16), u16_at(info, 18)), (0, vlan.unwrap_or(0), queues / 2));
        assert!(info[20..64].iter().all(|byte| *byte == 0), "{info:02x?}");
        assert!(client.queues.iter().all(|queue| queue.depth == u32::from(DEPTH)), "granted as wanted");
        let (posted, addresses) = (0..queues / 2).map(|_| (VecDeque::new(), None)).unzip();
        Self { client, posted, addresses, next_tag: 0 }
    }

    /// Post buffers, in messages of up to 4, as many as the depth lets. A port with several pairs has room for every frame.
    fn post(&mut self, random: &mut Random) {
        let has_one_pair = self.posted.len() == 1;
        for pair in 0..self.posted.len() {
            let mut free = usize::from(DEPTH) - self.posted[pair].len();
            while free > 0 && (!has_one_pair || random.percent(20)) {
                let count = free.min(1 + small(random, 4));
                let mut message = [0; 60];
                // What is beyond the count is ignored.
                random.fill(&mut message[4..52]);
                (message[0], message[1]) = (3, count.to_le_bytes()[0]);
                for index in 0..count {
                    let (tag, length) = (self.next_tag, if has_one_pair { 1 + small(random, 400) } else { 1518 });
                    self.next_tag = self.next_tag.wrapping_add(1);
                    // Each has a place of its own: no more than 32 are posted.
                    let place = BUFFERS + 2048 * u32::from(tag % 64);
                    let length = u32::try_from(length).expect("small");
                    let at = 4 + 12 * index;
                    message[at..at + 2].copy_from_slice(&tag.to_le_bytes());
                    message[at + 2..at + 4].copy_from_slice(&[0, 0]);
                    message[at + 4..at + 8].copy_from_slice(&place.to_le_bytes());
                    message[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
                    self.posted[pair].push_back((tag, place, length));
                }
                self.client.publish_on(2 * pair + 1, &message);
                free -= count;
            }
        }
    }

    /// Has it buffers for a frame of so many bytes? At most 20 are filled.
    fn has_room(&self, length: usize) -> bool {
        let room = |posted: &VecDeque<Posted>| posted.iter().take(20).map(|(.., length)| *length as usize).sum::<usize>();
        self.posted.iter().all(|posted| room(posted) >= if length <= 56 { 1 } else { length })
    }

    /// The next frame, by whichever pair, as 10.4 says that it comes.
    fn receive(&mut self, what: &str) -> Vec<u8> {
        let client = &mut self.client;
        let pairs = self.posted.len();
        let find = || (0..pairs).find_map(|pair| Some((pair, client.try_message_on(2 * pair + 1)?)));
        let (pair, message) = until(what, find);
        let posted = &mut self.posted[pair];
        let mut next = |tag: u16| {
            let (oldest, place, length) = posted.pop_front().expect("a buffer is posted");
            assert_eq!(oldest, tag, "buffers are taken in the order in which they were posted: {message:02x?}");
            (place, length as usize)
        };
        let count = usize::from(message[1]);
        if message[0] == 2 {
            assert!((14..=56).contains(&count) && message[4 + count..].iter().all(|byte| *byte == 0), "{message:02x?}");
            next(u16_at(&message, 2));
            self.addresses[pair] = message[4..].first_chunk().copied();
            return message[4..4 + count].to_vec();
        }
        if message[0] == 5 {
            assert!((57..=68).contains(&count) && message[count - 8..].iter().all(|byte| *byte == 0), "{message:02x?}");
            let (_, room) = next(u16_at(&message, 2));
            assert!(room >= count, "the buffer would hold it: {message:02x?}");
            let addresses: [u8; 12] = self.addresses[pair].expect("a frame with addresses has come");
            return [&addresses[..], &message[4..count - 8]].concat();
        }
        let length = u32_at(&message, 4) as usize;
        assert!(message[0] == 1 && (1..=20).contains(&count) && length > 56, "{message:02x?}");
        assert!(message[2..4] == [0; 2] && message[8..20] == [0; 12], "reserved, and no offload: {message:02x?}");
        assert!(message[20 + 2 * count..].iter().all(|byte| *byte == 0), "tags beyond the count: {message:02x?}");
        let mut frame = Vec::new();
        for index in 0..count {
            assert!(frame.len() < length, "more buffers than it fills: {message:02x?}");
            let (place, room) = next(u16_at(&message, 20 + 2 * index));
            frame.extend(self.client.pool(place.into(), room.min(length - frame.len())));
        }
        assert_eq!(frame.len(), length, "the buffers hold the frame: {message:02x?}");
        if length <= 68 {
            self.addresses[pair] = frame.first_chunk().copied();
        }
        frame
    }
}

/// A frame as its bytes say, without what wrong lengths leave out.
#[derive(Clone, Copy, Debug)]
struct Header {
    destination: [u8; 6],
    source: [u8; 6],
    tag: Option<u16>,
    ether_type: u16,
}

impl Header {
    fn of(frame: &[u8]) -> Option<Self> {
        let big = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let is_tagged = frame.get(12..14)? == TAG;
        let tag = if is_tagged { Some(big(14)?) } else { None };
        let (destination, source) = (*frame.first_chunk()?, *frame.get(6..)?.first_chunk()?);
        Some(Self { destination, source, tag, ether_type: big(if is_tagged { 16 } else { 12 })? })
    }

    /// The VLAN in which a port sends it.
    fn vlan(&self, rules: &Rules) -> Option<u16> {
        let is_further = [0x8100, 0x88a8, 0x9100].contains(&self.ether_type);
        // All of these ports have VLANs.
        if is_further {
            return None;
        }
        match self.tag.map(|tag| tag & 0xfff) {
            Some(0) if rules.tagged.is_empty() => None,
            None | Some(0) => rules.plain,
            Some(vlan) => rules.tagged.contains(&vlan).then_some(vlan),
        }
    }
}

/// A frame of a port as it is sent, and the status that it is answered with by the checks of 10.3, in their order.
fn draw(from: usize, number: u16, random: &mut Random) -> Message {
    let stranger = |random: &mut Random| [2, 0, 0, 0, 9, small(random, 4).to_le_bytes()[0]];
    let destination = match small(random, 10) {
        0..5 => mac(small(random, 5)),
        5 | 6 => [0xff; 6],
        7 => [0x33, 0x33, 0, 0, 0, 1],
        _ => stranger(random),
    };
    let source = match small(random, 20) {
        0 => mac(small(random, 5)),
        1 => [3, 0, 0, 0, 0, 1],
        2..6 => stranger(random),
        _ => mac(from),
    };
    let mut frame = [&destination[..], &source].concat();
    if random.percent(if RULES[from].tagged.is_empty() { 10 } else { 70 }) {
        let vlan = [0_u16, 10, 10, 20, 20, 30, 99][small(random, 7)];
        let priority = u16::try_from(small(random, 8)).expect("small") << 13;
        frame.extend([TAG, (vlan | priority).to_be_bytes()].concat());
    }
    let types = [[0x88, 0xb5], [0x08, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8], [0x91, 0]];
    frame.extend(types[if random.percent(90) { small(random, 3) } else { 3 + small(random, 3) }]);
    let length = match small(random, 4) {
        0 => frame.len() + small(random, 60),
        1 => MTU + 10 + small(random, 12),
        _ => frame.len() + small(random, 1500),
    };
    let header = frame.len();
    frame.resize(length.max(header), 0);
    random.fill(&mut frame[header..]);
    let (bytes, unchecked) = encode(&mut frame, number, random);
    let status = unchecked.unwrap_or_else(|| status(from, &frame));
    Message { bytes, frame, status }
}

/// Operation 1 or 2, seldom with something wrong, whose status then counts. The rest of operation 1 goes to [`REST`].
fn encode(frame: &mut Vec<u8>, number: u16, random: &mut Random) -> ([u8; 60], Option<u16>) {
    let mut bytes = [0; 60];
    bytes[2..4].copy_from_slice(&number.to_le_bytes());
    let wrong = random.percent(10);
    if frame.len() <= 56 && random.percent(60) {
        let length = frame.len();
        (bytes[0], bytes[1]) = (2, length.to_le_bytes()[0]);
        // What is beyond the length is ignored.
        random.fill(&mut bytes[4..]);
        bytes[4..4 + length].copy_from_slice(frame);
        if wrong && random.percent(50) {
            bytes[1] = 57 + small(random, 199).to_le_bytes()[0];
            return (bytes, Some(1));
        }
        if wrong {
            frame.truncate(small(random, 14));
            bytes[1] = frame.len().to_le_bytes()[0];
        }
        return (bytes, None);
    }
    let least = if frame[12..14] == TAG { 18 } else { 14 };
    let first = (least + small(random, 37 - least)).min(frame.len());
    (bytes[0], bytes[1]) = (1, first.to_le_bytes()[0]);
    let rest = u32::try_from(frame.len() - first).expect("small");
    bytes[4..8].copy_from_slice(&REST.to_le_bytes());
    bytes[8..12].copy_from_slice(&rest.to_le_bytes());
    random.fill(&mut bytes[24..]);
    bytes[24..24 + first].copy_from_slice(&frame[..first]);
    if rest == 0 {
        // Offset and memory are ignored.
        random.fill(&mut bytes[4..8]);
        random.fill(&mut bytes[12..14]);
    }
    if wrong {
        match small(random, 4) {
            0 => bytes[0] = [0, 3, 255][small(random, 3)],
            1 => bytes[14 + small(random, 10)] = 1,
            2 => {
                bytes[1] = 37;
                return (bytes, Some(1));
            }
            _ => {
                bytes[1] = small(random, 14).to_le_bytes()[0];
                return (bytes, Some(4));
            }
        }
        return (bytes, Some(2));
    }
    (bytes, None)
}

/// The checks of 10.3 of a message whose operation and lengths are right.
fn status(from: usize, frame: &[u8]) -> u16 {
    let Some(header) = Header::of(frame) else { return 4 };
    let (rules, tag_bytes) = (&RULES[from], if header.tag.is_some() { 4 } else { 0 });
    let is_own = header.source == mac(from);
    let is_others = (0..RULES.len()).any(|port| header.source == mac(port)) && !is_own;
    let may_send = is_own || rules.any_source && !is_others && header.source[0] & 1 == 0;
    match () {
        () if frame.len() > MTU + 14 + tag_bytes => 5,
        () if header.vlan(rules).is_none() => 7,
        () if !may_send => 6,
        () => 0,
    }
}

/// What the switch has learned: where a stranger in a VLAN is.
type Learned = HashMap<(u16, [u8; 6]), usize>;

/// The ports that receive a frame that was taken, and the frame as it leaves for each (10.7).
fn receivers(from: usize, frame: &[u8], learned: &mut Learned) -> Vec<(usize, Vec<u8>)> {
    let header = Header::of(frame).expect("it was taken");
    let vlan = header.vlan(&RULES[from]).expect("it was taken");
    if header.source != mac(from) {
        learned.insert((vlan, header.source), from);
    }
    let is_group = header.destination[0] & 1 == 1;
    let own = (0..RULES.len()).find(|port| header.destination == mac(*port));
    let place = own.or_else(|| learned.get(&(vlan, header.destination)).copied());
    let gets = |port: &usize| {
        let rules = &RULES[*port];
        let is_member = rules.plain == Some(vlan) || rules.tagged.contains(&vlan);
        let is_for_it = is_group || place.map_or(rules.any_source, |place| place == *port);
        *port != from && is_member && is_for_it && !(rules.isolated && RULES[from].isolated)
    };
    let leaving = |port: usize| {
        let rest = &frame[if header.tag.is_some() { 16 } else { 12 }..];
        let tag = match (RULES[port].plain == Some(vlan), header.tag.filter(|tag| tag & 0xfff == vlan)) {
            (true, _) => Vec::new(),
            // A tag that names the VLAN stays as it is.
            (false, tag) => [TAG, tag.unwrap_or(vlan).to_be_bytes()].concat(),
        };
        (port, [&frame[..12], &tag, rest].concat())
    };
    (0..RULES.len()).filter(gets).map(leaving).collect()
}

/// checks: R-1-1, R-10.1-5, R-10.3-2, R-10.3-3, R-10.3-6, R-10.3-7, R-10.3-9, R-10.3-10, R-10.3-17
/// checks: R-10.4-2, R-10.4-3, R-10.4-4, R-10.5-1, R-10.7-1, R-10.7-2, R-10.7-3
#[test]
fn frames_go_where_the_document_says_whatever_is_sent() {
    let dir = Scratch::new();
    dir.configure(FILE);
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml", "--workers", "1"]);
    let mut ports: Vec<Port> = (0..RULES.len()).map(|number| Port::attach(&daemon, number)).collect();
    let (mut random, mut learned) = (Random(10), Learned::new());
    let (mut statuses, mut received, mut dropped) = ([0_u32; 10], 0_u32, 0_u32);
    for number in 0..4000_u16 {
        ports.iter_mut().for_each(|port| port.post(&mut random));
        let from = small(&mut random, RULES.len());
        let message = draw(from, number, &mut random);
        let Message { bytes, frame, status } = &message;
        let sender = &mut ports[from].client;
        sender.fill(REST.into(), &frame[usize::from(bytes[1]).min(frame.len())..]);
        sender.publish_on(0, bytes);
        assert_eq!(sender.completion_of_frame(), (number, *status), "{message:02x?} from port {from}");
        statuses[usize::from(*status)] += 1;
        if *status != 0 {
            continue;
        }
        for (port, expected) in receivers(from, frame, &mut learned) {
            if !ports[port].has_room(expected.len()) {
                dropped += 1;
                continue;
            }
            let found = ports[port].receive(&format!("frame {number} of port {from} at port {port}"));
            assert_eq!(found, expected, "frame {number} of port {from} at port {port}");
            received += 1;
        }
    }
    // Whatever a port got beside these would have come in place of a later one; the last ones are looked for here.
    for port in &mut ports {
        (0..port.posted.len()).for_each(|pair| assert_eq!(port.client.try_message_on(2 * pair + 1), None));
    }
    assert!([0, 1, 2, 4, 5, 6, 7].iter().all(|status| statuses[*status] > 20), "{statuses:?}");
    assert!(received > 1000 && dropped > 50, "{received} received, {dropped} dropped: the test must have both");
    for Port { client, .. } in ports {
        assert_eq!(client.control.ask(&control(DETACH, 12), &[]).kind(), DETACHED);
    }
}

impl Client {
    /// The next message of the transmit queue's completions, which gives back one frame (10.6): tag and status.
    fn completion_of_frame(&mut self) -> (u16, u16) {
        let message = self.message_on(0);
        assert!(message[..4] == [0, 1, 0, 0] && message[8..].iter().all(|byte| *byte == 0), "{message:02x?}");
        (u16_at(&message, 4), u16_at(&message, 6))
    }
}
