//! Packets of the control socket, in both directions: three implementations must agree about each.

use fipsee_interop::control::neutral;
use fipsee_interop::{ffi, golden};
use fipsee_ring::control::{Control, MAX_MESSAGE_BYTES, Refusal};

use crate::fio;

/// EPROTO: the fio engine's error for a fault.
const PROTOCOL_ERROR: i32 = 71;
/// Answers that a client waits for.
const ANSWERS: [u16; 5] = [2, 4, 7, 9, 11];
const ATTACHED: u16 = 4;

pub(crate) fn one(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_MESSAGE_BYTES)];
    let rust = Control::decode(bytes);
    let ours = rust.as_ref().ok().map(neutral);
    assert_eq!(ffi::control_decode(bytes), ours, "Rust says {rust:?}: {bytes:02x?}");
    if let Ok(message) = &rust {
        let encoded = message.encode();
        assert_eq!(Control::decode(&encoded).as_ref(), Ok(message), "what we send is what we meant");
        assert_eq!(ffi::control_encode(&neutral(message)), encoded, "C sends the same");
    }
    for kind in ANSWERS {
        engine(bytes, kind, &rust);
    }
}

/// The fio engine as a third: what it takes is what Rust takes, and a refusal says the same words.
fn engine(bytes: &[u8], kind: u16, rust: &Result<Control, fipsee_ring::control::Malformed>) {
    let is_attached = bytes.get(4..6) == Some(&ATTACHED.to_le_bytes());
    let engine = fio::answer(bytes, kind, if is_attached { 3 } else { 0 });
    let kind_of = |message: &Control| message.encode()[4];
    match (&engine, rust) {
        (Ok(()), Ok(message)) => assert_eq!(u16::from(kind_of(message)), kind, "the engine takes another kind: {bytes:02x?}"),
        // It looks at reserved fields where it uses the message.
        (Ok(()), Err(error)) => assert_eq!(error.what, "a reserved byte, at offset", "the engine takes {bytes:02x?}"),
        (Err(_), Ok(message)) if u16::from(kind_of(message)) == kind => panic!("the engine refuses {message:?}: {engine:?}"),
        (Err((number, text)), Ok(Control::Refused(Refusal { text: ours, .. }))) => {
            assert_ne!(*number, PROTOCOL_ERROR, "the engine does not understand the refusal {ours:?}");
            assert_eq!(text.as_slice(), ours.as_bytes(), "the engine's words");
        }
        (Err(_), _) => {}
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let is_control = |(_, bytes): &(String, Vec<u8>)| bytes.starts_with(b"FPSC");
    golden::examples().into_iter().filter(is_control).map(|(_, bytes)| bytes).collect()
}
