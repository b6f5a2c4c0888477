//! What a switch reads of an Ethernet frame: addresses and the VLAN tag, from bytes that were copied.

use std::fmt;
use std::str::FromStr;

use crate::wire::MAX_COMPRESSED_BYTES;

/// Bytes of the Ethernet header: destination, source, type.
pub const HEADER_BYTES: u32 = 14;
/// Bytes of a VLAN tag (802.1Q).
pub const VLAN_TAG_BYTES: u32 = 4;
/// Greatest number of a VLAN; 0 is none, 4095 is reserved.
pub const MAX_VLAN: u16 = 4094;

/// Where the type, or a tag, begins.
const TYPE_OFFSET: usize = 12;
const TAG_TYPE: [u8; 2] = [0x81, 0x00];
/// Types of tags in use: 802.1Q, 802.1ad, and what came before that.
const TAG_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Of several stations: broadcast or multicast.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The address of a group that a port can join.
    ///
    /// # Errors
    /// In words.
    pub fn to_join(self) -> Result<Self, String> {
        match self {
            Self::BROADCAST => Err(format!("frames to {self} come to every port in any case; join groups alone")),
            _ if self.is_group() => Ok(self),
            _ => Err(format!(
                "{self} is the address of no group; that of a group has an odd first byte, for example 01:00:5e:00:00:fb"
            )),
        }
    }

    /// As a word, of which the lowest bit says whether it [is of a group](Self::is_group).
    #[inline(always)]
    pub(crate) const fn key(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let byte = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2);
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        bytes.map(Self).ok_or_else(|| format!("'{text}' is no MAC address; write six bytes, for example 02:00:00:00:00:01"))
    }
}

/// The Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub destination: Mac,
    pub source: Mac,
    /// The VLAN of the tag; 0 if the tag names none.
    pub tag: Option<u16>,
    /// The type, behind the tag if there is one.
    pub ether_type: u16,
}

impl Header {
    /// Is the type that of another tag? A receiver may take that for the VLAN.
    #[inline(always)]
    pub fn has_tag_behind(&self) -> bool {
        TAG_TYPES.contains(&self.ether_type)
    }

    /// Of a frame with these first bytes; `None`: it has no whole header, or no whole tag.
    #[inline(always)]
    pub fn of(first: &[u8]) -> Option<Self> {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = match first.as_chunks::<8>().0 {
            // As whole words. The first bytes may be those of a message, which was stored in pieces of 16 bytes that begin and end with words, and
            // a load across two of them would wait until they have left this CPU.
            [first, second, ..] => {
                let [d0, d1, d2, d3, d4, d5, s0, s1] = u64::from_le_bytes(*first).to_le_bytes();
                let [s2, s3, s4, s5, t0, t1, ..] = u64::from_le_bytes(*second).to_le_bytes();
                [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]
            }
            _ => *first.first_chunk::<{ HEADER_BYTES as usize }>()?,
        };
        let (destination, source) = (Mac([d0, d1, d2, d3, d4, d5]), Mac([s0, s1, s2, s3, s4, s5]));
        let (tag, ether_type) = match [t0, t1] == TAG_TYPE {
            false => (None, u16::from_be_bytes([t0, t1])),
            true => {
                let [v0, v1, t0, t1] = *first.get(HEADER_BYTES as usize..)?.first_chunk()?;
                (Some(u16::from_be_bytes([v0, v1]) & 0x0fff), u16::from_be_bytes([t0, t1]))
            }
        };
        Some(Self { destination, source, tag, ether_type })
    }
}

/// What is done with the VLAN tag of a frame on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    AsItIs,
    Remove,
    /// Of this VLAN, in place of the one that is there, if one is.
    Put(u16),
}

/// The first bytes of a frame, as they are to leave.
#[derive(Clone, Copy, Debug)]
pub struct Head<const MAX: usize> {
    bytes: [u8; MAX],
    length: usize,
}

/// So many of the first bytes of a frame are copied at most, before the switch decides: a cache line, more than a message has.
pub const MAX_FIRST_COPIED_BYTES: usize = 64;

/// The longest head of a frame without an offload, and a tag.
pub type ShortHead = Head<{ MAX_COMPRESSED_BYTES + VLAN_TAG_BYTES as usize }>;

impl<const MAX: usize> Head<MAX> {
    /// `first` begins with a whole header, with its tag if it has one. What does not fit is left out.
    pub fn new(first: &[u8], tagging: Tagging) -> Self {
        let mut head = Self { bytes: [0; MAX], length: 0 };
        let is_tagged = first.get(TYPE_OFFSET..TYPE_OFFSET + 2) == Some(&TAG_TYPE);
        let (addresses, rest) = first.split_at(TYPE_OFFSET.min(first.len()));
        let rest = match tagging {
            Tagging::AsItIs => rest,
            _ if is_tagged => rest.get(VLAN_TAG_BYTES as usize..).unwrap_or_default(),
            _ => rest,
        };
        head.push(addresses);
        if let Tagging::Put(vlan) = tagging {
            head.push(&TAG_TYPE);
            head.push(&vlan.to_be_bytes());
        }
        head.push(rest);
        head
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.length..];
        let length = bytes.len().min(room.len());
        room[..length].copy_from_slice(&bytes[..length]);
        self.length += length;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0, 0x45, 0];
    const TAGGED: [u8; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0x20, 42, 8, 0, 0x45, 0];

    #[test]
    fn header_is_read_whole_or_not_at_all() {
        let header = Header::of(&PLAIN).expect("a header");
        assert_eq!((header.destination, header.source, header.tag), (Mac([1, 2, 3, 4, 5, 6]), Mac([7, 8, 9, 10, 11, 12]), None));
        assert_eq!(header.ether_type, 0x0800);
        let header = Header::of(&TAGGED).expect("a header");
        assert_eq!((header.tag, header.ether_type, header.has_tag_behind()), (Some(42), 0x0800, false));
        for tag_type in [[0x81, 0], [0x88, 0xa8], [0x91, 0]] {
            let mut twice = TAGGED;
            twice[16..18].copy_from_slice(&tag_type);
            assert!(Header::of(&twice).expect("a header").has_tag_behind(), "{tag_type:?}");
        }
        assert!((0..14).all(|length| Header::of(&PLAIN[..length]).is_none()));
        assert!((0..18).all(|length| Header::of(&TAGGED[..length]).is_none()));
        assert!(Header::of(&PLAIN[..14]).is_some() && Header::of(&TAGGED[..18]).is_some());
    }

    #[test]
    fn tag_is_put_replaced_and_removed() {
        assert_eq!(ShortHead::new(&TAGGED, Tagging::Remove).bytes(), PLAIN);
        assert_eq!(ShortHead::new(&PLAIN, Tagging::Remove).bytes(), PLAIN);
        assert_eq!(ShortHead::new(&TAGGED, Tagging::AsItIs).bytes(), TAGGED);
        let mut expected = TAGGED;
        expected[14] = 0;
        assert_eq!(ShortHead::new(&PLAIN, Tagging::Put(42)).bytes(), expected);
        expected[15] = 7;
        assert_eq!(ShortHead::new(&TAGGED, Tagging::Put(7)).bytes(), expected);
        let longest = [0; MAX_COMPRESSED_BYTES];
        assert_eq!(ShortHead::new(&longest, Tagging::Put(1)).bytes().len(), longest.len() + 4);
    }

    #[test]
    fn address_is_written_as_it_is_read() {
        let mac: Mac = "02:00:0a:ff:00:01".parse().expect("an address");
        assert_eq!((mac.to_string().as_str(), mac.is_group()), ("02:00:0a:ff:00:01", false));
        assert!(Mac::BROADCAST.is_group());
        for wrong in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "02-00-00-00-00-01", "02:00:00:00:00:0g"] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }
}
