//! The old daemon withdraws the takeover when the new one has everything already: the new one releases it and ends.

use fipsee_testkit::guest::device::Options;
use fipsee_testkit::guest::load::{GuestLoad, Way};
use fipsee_testkit::guest::machine::start_with;
use fipsee_testkit::load::Load;
use fipsee_testkit::takeover::between::{intercept, refuse_at_the_end};
use fipsee_testkit::{assert_says, eventually};

#[test]
fn new_daemon_that_may_not_serve_after_all_lets_go_of_everything() {
    let daemon = start_with(&["--disk", "m=memory:16M", "--disk", "d=memory:8M", "--disk", "e=memory:8M", "--workers", "2"]);
    let options = Options { size: 256, ..Options::default() };
    let load = Load::start(&daemon, "m", 32);
    let guests =
        [GuestLoad::start(&daemon, "d", &options, Way::Virtqueue, 32), GuestLoad::start(&daemon, "e", &options, Way::Ring, 32)];
    let (listener, real) = intercept(&daemon);
    for _ in 0..3 {
        load.await_progress();
        guests.iter().for_each(GuestLoad::await_progress);
        let before = daemon.log().len();
        let mut new = daemon.launch_takeover(&[]);
        refuse_at_the_end(&listener, &real);
        // A daemon that went on with the queues would never end: it would wait for clients to leave.
        eventually("the new daemon ends", || new.try_wait().expect("a child can be asked").is_some());
        assert!(!new.wait().expect("it has ended").success());
        // The running daemon may write its line after the new one has ended.
        let said = || daemon.log().split_off(before);
        eventually("the running daemon goes on", || said().contains("this daemon continues"));
        let said = said();
        assert_says(&said, &["the running daemon refuses: it took too long", "not handed over; this daemon continues"]);
        load.await_progress();
        guests.iter().for_each(GuestLoad::await_progress);
    }
    load.finish();
    guests.into_iter().for_each(|guest| assert!(guest.finish() > 0));
}
