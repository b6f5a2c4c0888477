//! Section 7.9: the session in the document, byte for byte, with a new daemon.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use fipsee_testkit::Daemon;
use fipsee_testkit::bytes::*;

use super::client::Client;
use super::document::blocks;

struct Document(BTreeMap<String, Vec<Option<u8>>>);

impl Document {
    /// All bytes that the client sends, from the document.
    fn ours(&mut self, name: &str) -> Vec<u8> {
        let bytes = self.0.remove(name).unwrap_or_else(|| panic!("section 7.9 has no block '{name}'"));
        bytes.into_iter().map(|byte| byte.expect("a client chooses its bytes")).collect()
    }

    /// These are the bytes that the daemon sends, from the document.
    #[track_caller]
    fn assert_is(&mut self, name: &str, found: &[u8]) {
        let expected = self.0.remove(name).unwrap_or_default();
        let is_equal = expected.len() == found.len()
            && expected.iter().zip(found).all(|(expected, found)| expected.is_none_or(|byte| byte == *found));
        assert!(is_equal, "'{name}': the daemon gives\n{}", hex(found));
    }
}

/// In the form of the document, eight bytes a line.
fn hex(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ") + "  # \n";
    bytes.chunks(8).map(line).collect()
}

fn payload(slot: &[u8]) -> [u8; 60] {
    *slot.first_chunk().expect("a slot")
}

/// checks: R-2.4-4, R-2.4-5
#[test]
fn the_session_is_byte_for_byte_that_of_the_document() {
    let daemon = Daemon::start(&["--disk", "disk0=memory:1M", "--workers", "1", "--wait", "sleep"]);
    let mut document = Document(blocks("session"));
    let socket = Socket::connect(&daemon.socket());
    let welcome = socket.ask(&document.ours("hello"), &[]);
    document.assert_is("welcome", &welcome.bytes);
    let wanted = Wanted { depth: 2, pool_bytes: 4096, ..Wanted::disk("disk0") };
    assert_eq!(document.ours("attach"), attach(&wanted));
    let mut client = Client::attach_on(socket, &wanted);
    document.assert_is("attached", &client.attached);
    document.assert_is("region", &client.memory.read(0, 128));

    // The write: the client arms before it, and the doorbell rings after it.
    client.fill(0, &[0x61; 512]);
    let (cold, ours) = (client.queues[0].cold, client.queues[0].cold + 128);
    client.await_sleeping_daemon(0);
    document.assert_is("request-cold", &client.memory.read(cold, 128));
    client.arm(0, 1);
    document.assert_is("completion-cold", &client.memory.read(ours, 128));
    let slot = document.ours("write");
    let (requests, completions) = (client.queues[0].requests, client.queues[0].completions);
    client.queues[0].requests.publish(&client.memory, &payload(&slot));
    assert_eq!(client.memory.read(requests.slot(), 64), slot, "the slot as in the document");
    assert!(must_ring(&client.memory, cold), "the daemon sleeps");
    rustix::io::write(&client.queues[0].daemon_doorbell, &document.ours("ring")).expect("an eventfd");
    await_ring(&client.queues[0].doorbell);
    assert_eq!(rings(&client.queues[0].doorbell), (vec![1], false));
    assert_eq!(client.memory.word(ours + 4).load(Ordering::SeqCst), 0, "the daemon cleared the flag");
    assert_eq!(client.completion(), (1, 0));
    document.assert_is("written", &client.memory.read(completions.slot(), 64));

    // The read: the client polls its ring and does not arm.
    let slot = document.ours("read");
    client.await_sleeping_daemon(0);
    let (requests, completions) = (client.queues[0].requests, client.queues[0].completions);
    client.publish(&payload(&slot));
    assert_eq!(client.memory.read(requests.slot(), 64), slot, "the slot as in the document");
    assert_eq!(client.completion(), (2, 0));
    document.assert_is("done", &client.memory.read(completions.slot(), 64));
    assert_eq!(client.pool(512, 512), [0x61; 512]);
    assert_eq!(rings(&client.queues[0].doorbell), (Vec::new(), false), "the client did not arm");

    let detached = client.control.ask(&document.ours("detach"), &[]);
    document.assert_is("detached", &detached.bytes);
    client.control.assert_closed();
    await_ring(&client.queues[0].doorbell);
    assert_eq!(rings(&client.queues[0].doorbell), (Vec::new(), true), "the doorbell is closed, too");
    assert!(document.0.is_empty(), "the session does not use {:?}", document.0.keys());
}
