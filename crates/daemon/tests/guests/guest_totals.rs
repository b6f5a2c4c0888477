//! What a virtual machine has done is counted in its disk's totals, whether or not its queues are served, and when it is gone.

use fipsee_testkit::hypervisor::Vm;
use fipsee_testkit::{Daemon, eventually};
use serde_json::{Value, json};

fn stat(daemon: &Daemon) -> Value {
    daemon.admin(&json!({ "method": "stat" }))["disks"][0].clone()
}

#[test]
fn totals_count_stopped_queues_and_machines_that_are_gone_over_a_takeover() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M", "--vhost-user", "a={dir}/a.sock"]);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    (0..5).for_each(|block| vm.write_block(block, 1));
    // A request is counted after its answer.
    eventually("they are counted", || stat(&daemon)["totals"]["writes"] == 5);
    vm.queue.stop(&vm.hypervisor);
    assert_eq!(stat(&daemon)["totals"]["writes"], 5, "no queue is served");
    daemon.take_over();
    assert_eq!(stat(&daemon)["totals"]["writes"], 5, "by another daemon");
    let client = stat(&daemon)["clients"][0].clone();
    assert_eq!((&client["kind"], &client["state"], &client["writes"]), (&json!("vhost-user"), &json!("attached"), &json!(5)));
    drop(vm);
    eventually("it is gone", || stat(&daemon)["clients"][0]["state"] == "gone");
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    (0..3).for_each(|block| vm.write_block(block, 2));
    eventually("both are counted", || stat(&daemon)["totals"]["writes"] == 8);
    assert_eq!(stat(&daemon)["totals"]["clients"], 2);
}
