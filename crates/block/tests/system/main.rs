//! Disks and the system: its programs, and its limits. Apart from the other tests of disks: between fork and exec a process holds
//! copies of all descriptors, and so of the locks that another test has just released.

mod disk_memlock;
mod disk_system;

fipsee_testkit::children! { "locked_disk" => disk_memlock::locked_disk }
