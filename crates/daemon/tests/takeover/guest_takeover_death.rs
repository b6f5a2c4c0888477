//! Either daemon is killed at each step of a takeover while a virtual machine is connected: afterwards exactly one serves, and
//! the machine goes on with it, or connects again and its requests in flight are finished.

use fipsee_block::wire::{Operation, Status};
use fipsee_testkit::guest::device::{Guest, IN, OK, OUT, Options};
use fipsee_testkit::guest::frontend::Request;
use fipsee_testkit::guest::machine::{Upgraded, start_guest, start_with, transfer};
use fipsee_testkit::guest::ring::Woken;
use fipsee_testkit::takeover::between::{Plan, Victim, forward_until_killed, intercept};
use fipsee_testkit::{eventually, stamp};

/// A guest that reads what it wrote over a virtqueue and over a ring, across every failure.
struct ReconnectingGuest {
    guest: Guest,
    up: Upgraded,
    data: u64,
    version: u64,
}

impl ReconnectingGuest {
    fn new(mut guest: Guest) -> Self {
        let up = Upgraded::attach(&mut guest, &[1], 8);
        let data = guest.ram.allocate(4096, 4096);
        Self { guest, up, data, version: 0 }
    }

    fn verify(&mut self) {
        let Self { guest, up, data, version } = self;
        for over_ring in [false, true] {
            guest.ram.write(*data, &[0; 4096]);
            if over_ring {
                assert_eq!(transfer(guest, up, 0, Operation::Read, 8, (*data, 4096)), Status::Ok);
            } else {
                assert_eq!(guest.transfer(0, IN, 8, (*data, 4096)), OK);
            }
            assert!(guest.ram.read(*data, 4096) == stamp(4096, 5, *version), "the last write");
        }
    }

    fn round(&mut self) {
        if self.version > 0 {
            self.verify();
        }
        self.version += 1;
        self.guest.ram.write(self.data, &stamp(4096, 5, self.version));
        if self.version.is_multiple_of(2) {
            assert_eq!(self.guest.transfer(0, OUT, 8, (self.data, 4096)), OK);
        } else {
            let to = (self.data, 4096);
            assert_eq!(transfer(&mut self.guest, &mut self.up, 0, Operation::Write, 8, to), Status::Ok);
        }
        // It waits for the next daemon.
        self.up.rings[0].hold_pending(self.up.attachment, &mut self.guest);
    }

    /// Go on with the daemon that serves now. True: the connection survived.
    fn resume_with_next_daemon(&mut self) -> bool {
        if self.guest.frontend.get(Request::GetFeatures).is_ok() {
            return true;
        }
        eventually("a daemon takes the hypervisor again", || self.guest.reconnect().is_ok());
        // The doorbell request was in flight, or was completed just before.
        let _: Woken = self.up.rings[0].wait_for_doorbell(&mut self.guest);
        assert_eq!(self.guest.queues.iter().map(|queue| queue.outstanding()).sum::<usize>(), 0, "all requests came back");
        self.up = Upgraded::attach(&mut self.guest, &[1], 8);
        false
    }
}

/// One takeover in which one daemon is killed; `false`: it was over before that step.
fn kill_at(plan: Plan) -> bool {
    let mut daemon = start_with(&["--disk", "f=file:{dir}/disk,size=1M,block=4096"]);
    let mut reconnecting = ReconnectingGuest::new(start_guest(&daemon, "f", &Options { queues: 2, ..Options::default() }));
    reconnecting.round();
    let (listener, real) = intercept(&daemon);
    let mut new = daemon.launch_takeover(&[]);
    let outcome = forward_until_killed(&listener, &real, plan, &mut daemon, &mut new);
    drop(listener);
    let context = format!("{plan:?} at {}: {}", outcome.at, daemon.log());
    if !outcome.killed {
        assert!(outcome.taken, "{context}");
        daemon.await_exit();
        daemon.replace(new);
        reconnecting.round();
        assert!(reconnecting.resume_with_next_daemon(), "the guest must not notice: {context}");
        return false;
    }
    if plan.victim == Victim::Old {
        daemon.replace(new);
    }
    if plan.victim == Victim::New && outcome.taken {
        // The new daemon served when it died, and the old one no longer does: as after any death of a daemon.
        daemon.await_exit();
        std::fs::rename(&real, fipsee_daemon::admin::admin_path(&daemon.socket())).expect("as it was");
        daemon.restart();
    }
    let survived = reconnecting.resume_with_next_daemon();
    for _ in 0..3 {
        reconnecting.round();
    }
    if plan.victim == Victim::New && !outcome.taken || plan.victim == Victim::Old && outcome.at == "taken" {
        assert!(survived, "the guest must not notice: {context}");
    }
    true
}

// Greeting, three sockets, a disk, two packets about being prepared, machine, memory, queues, end, taken.
fipsee_testkit::deaths_at_every_packet! { kill_at, 12 }
