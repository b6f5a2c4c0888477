//! The control plane's messages: what is encoded is decoded, and what is not exactly an encoding is refused.

use fipsee_ring::control::{
    ACCESS_READ, Control, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_REFUSAL_BYTES, Refusal, RefusalCode, SERVICE_INFO_BYTES,
    VERSION, Wanted,
};

fn every_kind() -> Vec<Control> {
    vec![
        Control::Hello { version_min: 1, version_max: 3, features: 0x8000_0000_0000_0001 },
        Control::Welcome { version: 1, max_queues: 64, max_depth: 4096, features: 5, max_pool_bytes: 1 << 30 },
        Control::Attach(Wanted {
            service: 1,
            queue_count: 4,
            depth: 128,
            flags: 1,
            pool_bytes: 1 << 20,
            name: "disk-ä".to_owned(),
        }),
        Control::Attached { queue_count: 4, region_bytes: 1 << 24, service_info: [0xa5; SERVICE_INFO_BYTES] },
        Control::Refused(Refusal { code: RefusalCode::UnknownName, text: "no disk of that name; see `fipsee ls`".to_owned() }),
        Control::Register { region: 1, access: ACCESS_READ, length_bytes: 1 << 33 },
        Control::Registered { region: 63 },
        Control::Unregister { region: 2 },
        Control::Unregistered { region: 2 },
        Control::Detach,
        Control::Detached,
    ]
}

/// Of HELLO and REFUSED the version is read, whatever it is: they are how a version is agreed on.
fn may_name_another_version(message: &Control) -> bool {
    matches!(message, Control::Hello { .. } | Control::Refused(_))
}

#[test]
fn every_kind_survives_encoding() {
    for message in every_kind() {
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{message:?} has {} bytes", bytes.len());
        assert_eq!(Control::decode(&bytes), Ok(message));
    }
}

#[test]
fn every_refusal_code_survives_encoding() {
    for wire in 0..=12_u32 {
        let mut bytes = Control::Refused(Refusal { code: RefusalCode::Other(wire), text: "no".to_owned() }).encode();
        let Ok(Control::Refused(Refusal { code, .. })) = Control::decode(&bytes) else { panic!("code {wire} is refused") };
        assert_eq!(matches!(code, RefusalCode::Other(_)), !(1..=8).contains(&wire), "code {wire}");
        bytes[12] = u8::try_from(wire).expect("small");
        assert_eq!(Control::Refused(Refusal { code, text: "no".to_owned() }).encode(), bytes, "code {wire} has two encodings");
    }
}

#[test]
fn every_changed_byte_is_refused_or_means_something_else() {
    for message in every_kind() {
        let bytes = message.encode();
        for position in 0..bytes.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 0xff, 0x7f] {
                let mut changed = bytes.clone();
                changed[position] ^= change;
                let Ok(decoded) = Control::decode(&changed) else { continue };
                if [6, 7].contains(&position) && may_name_another_version(&message) {
                    assert_eq!(decoded, message, "the version in the header is no part of the message");
                    continue;
                }
                assert_ne!(decoded, message, "byte {position} of {message:?} is not looked at");
                assert_eq!(decoded.encode(), changed, "byte {position} ^ {change:#x} of {message:?}");
            }
        }
    }
}

#[test]
fn every_shortened_or_lengthened_message_is_refused() {
    for message in every_kind() {
        let bytes = message.encode();
        for length in 0..bytes.len() {
            let mut short = bytes[..length].to_vec();
            assert!(Control::decode(&short).is_err(), "{message:?} cut to {length} bytes");
            if let Some(field) = short.get_mut(8..12) {
                field.copy_from_slice(&u32::try_from(length).expect("short").to_le_bytes());
            }
            assert!(Control::decode(&short).is_err(), "{message:?} cut to {length} bytes, and says so");
        }
        let mut long = [bytes.as_slice(), &[0; 4]].concat();
        assert!(Control::decode(&long).is_err(), "{message:?} with four bytes more");
        let length = u32::try_from(long.len()).expect("short");
        long[8..12].copy_from_slice(&length.to_le_bytes());
        assert!(Control::decode(&long).is_err(), "{message:?} with four bytes more, and says so");
    }
}

#[test]
fn names_and_texts_are_cut_at_a_character_and_stay_readable() {
    let long = "ä".repeat(500);
    let attach =
        Control::Attach(Wanted { service: 1, queue_count: 1, depth: 1, flags: 0, pool_bytes: 0, name: format!("a{long}") });
    let Ok(Control::Attach(Wanted { name, .. })) = Control::decode(&attach.encode()) else { panic!("a long name is refused") };
    assert_eq!(name.len(), MAX_NAME_BYTES - 1, "64 bytes end within a character");
    let refused = Control::Refused(Refusal { code: RefusalCode::Limit, text: long });
    let Ok(Control::Refused(Refusal { text, .. })) = Control::decode(&refused.encode()) else { panic!("a long text is refused") };
    assert_eq!(text.len(), MAX_REFUSAL_BYTES);
}

#[test]
fn text_that_is_not_utf8_and_text_longer_than_its_field_are_refused() {
    let refused = Control::Refused(Refusal { code: RefusalCode::Limit, text: "limit".to_owned() }).encode();
    let mut bytes = refused.clone();
    bytes[20] = 0xff;
    assert!(Control::decode(&bytes).is_err_and(|error| error.to_string().contains("UTF-8")));
    for length in [u32::try_from(MAX_REFUSAL_BYTES).expect("small") + 1, 0x8000_0000, u32::MAX] {
        let mut bytes = refused.clone();
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
        assert!(Control::decode(&bytes).is_err(), "text length {length}");
    }
}

#[test]
fn other_version_is_refused_with_its_number_except_where_versions_are_agreed_on() {
    for message in every_kind() {
        let mut bytes = message.encode();
        bytes[6..8].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let decoded = Control::decode(&bytes);
        if may_name_another_version(&message) {
            assert_eq!(decoded, Ok(message));
        } else {
            let error = decoded.expect_err("a message of another version");
            assert_eq!((error.what, error.value), ("the version", u64::from(VERSION + 1)));
        }
    }
}
