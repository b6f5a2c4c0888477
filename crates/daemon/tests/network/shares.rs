//! What each port gets of the network's worker, by the weights of its client's user or group: the order in which frames are served says it, whatever
//! the time that takes.

use fipsee_net::{AttachOptions, Port};
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::process::as_user;
use fipsee_testkit::{is_root, skip};
use rustix::process::Signal;

use super::{frame, mac, next, options, stat, with_file};

/// Of each sender: many visits of at most 64, and together less than the receiver's buffers.
const FRAMES: [u32; 3] = [2400, 800, 800];
const DEPTH: u32 = 4096;
const LENGTH: usize = 1514;

#[test]
fn worker_is_divided_among_ports_by_the_weights_of_their_users_and_groups() {
    if !is_root() {
        return skip("weights of ports", "only root can attach as several users");
    }
    let mut file =
        "max_depth = 4096\n[[user]]\nname = 4001\nweight = 30\n[[group]]\nname = \"batch\"\nusers = [4002, 4003]\nweight = 10\n\
                    [[network]]\nname = \"lan\"\n"
            .to_owned();
    for (number, name) in (1..).zip(["a", "b", "c", "d"]) {
        file.push_str(&format!(
            "[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\nallow_everyone = true\n"
        ));
    }
    let daemon = with_file(&file);
    let options = |port: &str, depth| AttachOptions { depth, buffer_bytes: Some(2048), wait: WaitMode::Sleep, ..options(port) };
    let mut senders = [("a", 4001), ("b", 4002), ("c", 4003)].map(|(port, user)| {
        let (socket, options) = (daemon.socket(), options(port, DEPTH));
        as_user(user, &[], move || Port::attach(&socket, &options)).expect("attached")
    });
    let mut receiver = Port::attach(&daemon.socket(), &options("d", DEPTH)).expect("attached");
    // All have work until the first has nothing left.
    daemon.freeze();
    for ((number, sender), frames) in (1..).zip(&mut senders).zip(FRAMES) {
        (0..frames).for_each(|seed| sender.send(&frame(mac(number), mac(4), LENGTH, seed.into())).expect("room"));
    }
    daemon.signal(Signal::CONT);
    // A worker that was stopped in its sleep finds its idle queues in several passes. What counts is since it served each of them.
    let (mut counts, mut before) = ([0; 3], None);
    while counts[0] < FRAMES[0] {
        let source = usize::from(next(&mut receiver)[11]);
        counts[source - 1] += 1;
        if counts.iter().all(|count| *count > 0) {
            before.get_or_insert(counts);
        }
    }
    let before = before.expect("all were served before the first had nothing left");
    // The two of the group have one share together. A visit that exceeds it is taken off the next one.
    let [a, b, c] = [0, 1, 2].map(|sender| counts[sender] - before[sender]);
    let fair = a / 6;
    assert!([b, c].iter().all(|count: &u32| count.abs_diff(fair) < 100), "{a} : {b} : {c}, not 6 : 1 : 1");
    let of_d = stat(&daemon, "d");
    assert_eq!(of_d["dropped"], 0, "{of_d}");
}
