//! Captures in the form of pcapng (draft-ietf-opsawg-pcapng): a section, one interface, and a block for each frame. All
//! numbers are little-endian.

use std::time::Duration;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINK_TYPE_ETHERNET: u16 = 1;
const OPTION_APPLICATION: u16 = 4;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_MAC_ADDRESS: u16 = 6;
/// Of times, as a power of ten: nanoseconds.
const OPTION_RESOLUTION: u16 = 9;
const NANOSECONDS: u8 = 9;
/// Type and length, twice the length.
const BLOCK_BYTES: u32 = 12;

/// Append a block with this body, whose length is a multiple of 4.
fn block(out: &mut Vec<u8>, kind: u32, parts: &[&[u8]]) {
    let body_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let length = (BLOCK_BYTES + u32::try_from(body_bytes).unwrap_or(0)).to_le_bytes();
    out.extend(kind.to_le_bytes());
    out.extend(length);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend(length);
}

fn padding(length_bytes: usize) -> &'static [u8] {
    &[0; 3][..length_bytes.next_multiple_of(4) - length_bytes]
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend(u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(padding(value.len()));
}

/// What is before the frames of the interface with this name and address.
pub(super) fn begin(name: &str, mac: [u8; 6]) -> Vec<u8> {
    const END_OF_OPTIONS: [u8; 4] = [0; 4];
    let (mut out, mut options) = (Vec::new(), Vec::new());
    option(&mut options, OPTION_APPLICATION, concat!("fipsee ", env!("CARGO_PKG_VERSION")).as_bytes());
    let unknown_length = (-1_i64).to_le_bytes();
    let version = [1_u16.to_le_bytes(), 0_u16.to_le_bytes()].concat();
    block(&mut out, SECTION_HEADER, &[&BYTE_ORDER_MAGIC.to_le_bytes(), &version, &unknown_length, &options, &END_OF_OPTIONS]);
    options.clear();
    option(&mut options, OPTION_INTERFACE_NAME, name.as_bytes());
    option(&mut options, OPTION_MAC_ADDRESS, &mac);
    option(&mut options, OPTION_RESOLUTION, &[NANOSECONDS]);
    // Type of link, reserved, no limit of the length of a frame.
    let description = [&LINK_TYPE_ETHERNET.to_le_bytes()[..], &[0; 2], &[0; 4]].concat();
    block(&mut out, INTERFACE_DESCRIPTION, &[&description, &options, &END_OF_OPTIONS]);
    out
}

/// A frame that came so long after the epoch, in place of what `out` has.
pub(super) fn frame(out: &mut Vec<u8>, since_epoch: Duration, frame: &[u8]) {
    out.clear();
    let ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
    let [high, low] = [ns >> 32, ns & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0).to_le_bytes());
    let length = u32::try_from(frame.len()).unwrap_or(0).to_le_bytes();
    // Interface 0; as much was captured as there was.
    block(out, ENHANCED_PACKET, &[&[0; 4], &high, &low, &length, &length, frame, padding(frame.len())]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checked with the table of section 4 of the draft.
    #[test]
    fn blocks_are_those_of_the_format() {
        let begun = begin("lan/m", [2, 0, 0, 0, 0, 1]);
        let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let section = word(&begun, 4) as usize;
        assert_eq!((word(&begun, 0), word(&begun, 8), word(&begun, 12)), (SECTION_HEADER, BYTE_ORDER_MAGIC, 1));
        assert_eq!((&begun[16..24], word(&begun, section - 4) as usize), (&[0xff; 8][..], section));
        let interface = &begun[section..];
        assert_eq!((word(interface, 0), word(interface, 4) as usize, word(interface, 8)), (1, interface.len(), 1));
        let options =
            [&[2, 0, 5, 0][..], b"lan/m\0\0\0", &[6, 0, 6, 0, 2, 0, 0, 0, 0, 1, 0, 0], &[9, 0, 1, 0, 9, 0, 0, 0], &[0; 4]];
        assert_eq!(interface[16..interface.len() - 4], options.concat());
        let mut out = vec![1];
        frame(&mut out, Duration::new(1, 5), &[7; 5]);
        let expected = [6, 40, 0, 0, 1_000_000_005, 5, 5].map(u32::to_le_bytes).concat();
        assert_eq!(out, [&expected[..], &[7, 7, 7, 7, 7, 0, 0, 0], &40_u32.to_le_bytes()].concat());
        frame(&mut out, Duration::from_nanos(3 << 32 | 4), &[7; 4]);
        assert_eq!((word(&out, 4), word(&out, 12), word(&out, 16), out.len()), (36, 3, 4, 36));
    }
}
