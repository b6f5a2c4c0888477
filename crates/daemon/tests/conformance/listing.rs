//! Section 4.9: what a client may attach to.

use fipsee_block::client::{self, Error, ListedDisk};
use fipsee_testkit::bytes::*;
use fipsee_testkit::faulty::script::play;
use fipsee_testkit::{Daemon, Scratch, as_user, assert_says, is_root, skip};

use super::client::Client;

/// The feature *list*.
const FEATURE: u64 = 8;

/// An entry: name, sectors, block, flags.
type Entry = (String, u64, u32, u32);

#[track_caller]
fn greeted(daemon: &Daemon) -> Socket {
    let control = Socket::connect(&daemon.socket());
    let welcome = control.ask(&hello(1, 1, FEATURE), &[]);
    assert_eq!((welcome.kind(), u64_at(&welcome.bytes, 24)), (WELCOME, FEATURE));
    control
}

/// A page, and whether there are more.
#[track_caller]
fn page(control: &Socket, after: &[u8]) -> (Vec<Entry>, bool) {
    let answer = control.ask(&list(1, after), &[]);
    assert_eq!((answer.kind(), answer.bytes.len(), answer.files.len()), (LISTED, 496, 0), "{:02x?}", answer.bytes);
    let (count, more) = (usize::from(u16_at(&answer.bytes, 12)), u16_at(&answer.bytes, 14));
    assert!(count <= 6 && more <= 1, "{count} entries, more is {more}");
    let (entries, rest) = answer.bytes[16..].split_at(80 * count);
    assert!(rest.iter().all(|byte| *byte == 0), "entries beyond the count");
    let entry = |bytes: &[u8]| {
        let length = bytes[..64].iter().position(|byte| *byte == 0).unwrap_or(64);
        assert!(bytes[length..64].iter().all(|byte| *byte == 0), "bytes behind the name");
        let name = String::from_utf8(bytes[..length].to_vec()).expect("UTF-8");
        (name, u64_at(bytes, 64), u32_at(bytes, 72), u32_at(bytes, 76))
    };
    (entries.chunks(80).map(entry).collect(), more == 1)
}

/// checks: R-4.9-1, R-4.9-2
#[test]
fn disks_are_listed_in_pages_in_the_order_of_their_bytes() {
    let long = "x".repeat(64);
    let names = ["b", "Z", "a10", "a", "a2", "a1", "a-", "a.", "c", "d", "e", "f", &long];
    let disks = names.map(|name| format!("{name}=null:1M"));
    let mut arguments = vec!["--disk", "r=memory:3M,block=4096,ro"];
    arguments.extend(disks.iter().flat_map(|disk| ["--disk", disk]));
    let daemon = Daemon::start(&arguments);
    let mut expected: Vec<Entry> = names.map(|name| (name.to_owned(), 2048, 512, 0)).to_vec();
    expected.push(("r".to_owned(), 6144, 4096, 1));
    expected.sort_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
    let control = greeted(&daemon);
    let mut after = String::new();
    for (round, chunk) in expected.chunks(6).enumerate() {
        let (entries, more) = page(&control, after.as_bytes());
        assert_eq!((entries.as_slice(), more), (chunk, round < 2), "after '{after}'");
        after.clone_from(&chunk[chunk.len() - 1].0);
    }
    assert_eq!(page(&control, after.as_bytes()), (Vec::new(), false), "after the last");
    // A name that there is not, and one that is longer than any.
    assert_eq!(page(&control, b"a05").0[0].0, "a1");
    assert_eq!(page(&control, &[0x7f; 64]), (Vec::new(), false));
    // The connection goes on: it attaches. No page has opened anything.
    assert_eq!(daemon.attached_count("a"), 0);
    let mut client = Client::attach_on(control, &Wanted::disk("a"));
    assert_eq!(client.ask(&transfer(READ, 1, 0, (0, 1, 0))), 0);
    let listed = client::list(&daemon.socket()).expect("listed");
    let disk = |(name, sectors, block_bytes, flags): Entry| {
        let (size_bytes, read_only) = (sectors * 512, flags & 1 != 0);
        ListedDisk { name, size_bytes, block_bytes, read_only }
    };
    assert_eq!(listed, expected.into_iter().map(disk).collect::<Vec<_>>(), "by the client library");
}

/// checks: R-4.9-1, R-4.3-7
#[test]
fn disks_of_others_are_not_listed_and_do_not_exist_for_a_client() {
    if !is_root() {
        return skip("list as other users", "only root can become another user");
    }
    let dir = Scratch::new();
    let disk = |name: &str, allow: &str| format!("[[disk]]\nname = \"{name}\"\nspec = \"memory:1M,exclusive\"\n{allow}\n");
    let toml = [
        disk("everyone", "allow_everyone = true"),
        disk("user", "allow_uids = [4000]"),
        disk("group", "allow_gids = [4001]"),
        disk("root", ""),
    ];
    std::fs::write(dir.path("f.toml"), toml.concat()).expect("a file");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    // In use or not.
    let _holder = Client::attach(&daemon, &Wanted::disk("everyone"));
    for (uid, groups, expected) in [
        (4000, &[][..], &["everyone", "user"][..]),
        (4000, &[4001], &["everyone", "group", "user"]),
        (4001, &[], &["everyone", "group"]),
        (4002, &[], &["everyone"]),
        (0, &[], &["everyone", "group", "root", "user"]),
    ] {
        let socket = daemon.socket();
        let control = as_user(uid, groups, move || Socket::connect(&socket));
        assert_eq!(control.ask(&hello(1, 1, FEATURE), &[]).kind(), WELCOME);
        let names: Vec<String> = page(&control, b"").0.into_iter().map(|entry| entry.0).collect();
        assert_eq!(names, expected, "user {uid}, groups {groups:?}");
    }
    // Byte for byte the same but for the name, of a disk that there is and of one that there is not.
    let answers = ["root", "none"].map(|name| {
        let socket = daemon.socket();
        let control = as_user(4000, &[], move || Socket::connect(&socket));
        assert_eq!(control.ask(&hello(1, 1, 0), &[]).kind(), WELCOME);
        let answer = control.ask(&attach(&Wanted { flags: 2, ..Wanted::disk(name) }), &[]);
        control.assert_closed();
        String::from_utf8_lossy(&answer.bytes).replace(name, "name")
    });
    assert_eq!(answers[0], answers[1]);
    assert_says(&answers[0], &["no disk 'name' that user 4000 may use; `fipsee ls` lists those"]);
}

/// checks: R-4.3-21, R-4.3-4
#[test]
fn a_list_that_is_not_agreed_on_or_out_of_order_is_refused() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let attached = || Client::attach_on(greeted(&daemon), &Wanted::disk("a")).control;
    for (what, control, request) in [
        ("without the feature", super::client::greeted(&daemon), list(1, b"")),
        ("calls", greeted(&daemon), list(2, b"")),
        ("service 0", greeted(&daemon), list(0, b"")),
        ("before HELLO", Socket::connect(&daemon.socket()), list(1, b"")),
        ("attached", attached(), list(1, b"")),
        ("a reserved byte", greeted(&daemon), with(list(1, b""), 15, &[1])),
        ("no UTF-8", greeted(&daemon), list(1, &[0xff])),
        ("bytes behind the name", greeted(&daemon), with(list(1, b"a"), 79, b"x")),
    ] {
        control.send(&request, &[]);
        control.assert_refused(2, what);
        control.assert_closed();
    }
}

fn welcome(features: u64) -> Vec<u8> {
    let bytes = with(with(control(WELCOME, 40), 12, &[1]), 14, &[1]);
    with(with(bytes, 16, &[1]), 24, &features.to_le_bytes())
}

fn listed(names: &[&str], more: u8) -> Vec<u8> {
    let count = u8::try_from(names.len()).expect("few");
    let mut bytes = with(with(control(LISTED, 496), 12, &[count]), 14, &[more]);
    for (index, name) in names.iter().take(6).enumerate() {
        let offset = 16 + 80 * index;
        bytes = with(with(bytes, offset, name.as_bytes()), offset + 64, &2048_u64.to_le_bytes());
        bytes = with(bytes, offset + 72, &512_u32.to_le_bytes());
    }
    bytes
}

/// What the client makes of a daemon that answers like this.
fn list_from(features: u64, answers: Vec<Vec<u8>>) -> (Result<Vec<String>, Error>, Vec<Vec<u8>>) {
    let (dir, daemon) = play(move |control| {
        let mut received = vec![control.receive().expect("HELLO").bytes];
        control.send(&welcome(features), &[]);
        for answer in answers {
            let Some(packet) = control.receive() else { break };
            received.push(packet.bytes);
            control.send(&answer, &[]);
        }
        received.extend(control.receive().map(|packet| packet.bytes));
        received
    });
    let names = client::list(&dir.path("s")).map(|disks| disks.into_iter().map(|disk| disk.name).collect());
    (names, daemon.join().expect("no panic"))
}

/// checks: R-4.9-2, R-4.9-3, R-4.9-4, R-6-8
#[test]
fn the_client_asks_page_by_page_and_finds_faults() {
    let (names, sent) = list_from(FEATURE, vec![listed(&["a", "b"], 1), listed(&["b1"], 0)]);
    assert_eq!(names.expect("listed"), ["a", "b", "b1"]);
    assert_eq!(sent, [hello(1, 1, FEATURE), list(1, b""), list(1, b"b")]);
    let (names, sent) = list_from(0, Vec::new());
    let error = names.expect_err("an old daemon").to_string();
    assert_says(&error, &["knows no request for a list", "older than this program", "upgrade it"]);
    assert_eq!(sent.len(), 1, "nothing after HELLO");
    for (what, pages) in [
        ("not sorted", vec![listed(&["b", "a"], 0)]),
        ("twice", vec![listed(&["a", "a"], 0)]),
        ("no name", vec![listed(&[""], 0)]),
        ("the same page again", vec![listed(&["a"], 1), listed(&["a"], 1)]),
        ("more, and no entry", vec![listed(&[], 1)]),
        ("more than six", vec![with(listed(&["a"], 0), 12, &[7])]),
        ("more is 2", vec![listed(&["a"], 2)]),
        ("an entry beyond the count", vec![with(listed(&["a"], 0), 96, b"x")]),
        ("no size", vec![with(listed(&["a"], 0), 80, &[0; 8])]),
        ("a size of 2^55 sectors", vec![with(listed(&["a"], 0), 80, &(1_u64 << 55).to_le_bytes())]),
        ("a block of 0", vec![with(listed(&["a"], 0), 88, &[0; 4])]),
        ("another answer", vec![control(DETACHED - 1, 12)]),
    ] {
        let (names, _) = list_from(FEATURE, pages);
        assert!(matches!(names, Err(Error::Fault(_) | Error::Malformed(_))), "{what}: {names:?}");
    }
    let (names, _) = list_from(FEATURE, vec![with(listed(&["a"], 0), 92, &[0xfe; 4])]);
    assert_eq!(names.expect("unknown flags are ignored"), ["a"]);
}
