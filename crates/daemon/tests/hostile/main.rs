//! Faulty clients, guests, hypervisors and daemons: what each of them gets, and that no other peer is affected; and what a daemon
//! that one of them had taken over could do ([`confinement`]).

mod confinement;
mod crowd;
mod cut;
mod daemon_faults;
mod guest;
mod injecting;
mod local;
mod log;
mod mock;
mod orders;

fipsee_testkit::children! {
    "try_what_is_asked_for" => confinement::attempts::try_what_is_asked_for,
    "daemon_of_a_poorer_kernel" => confinement::daemon::daemon_of_a_poorer_kernel,
    "program_around_a_daemon" => confinement::daemon::program_around_a_daemon,
}
