//! Where the queues of ports are, beside workers that others have to themselves.

use fipsee_net::{AttachOptions, Port};
use fipsee_testkit::{Daemon, assert_says, eventually};
use serde_json::{Value, json};

use super::start;

fn dedicate(daemon: &Daemon, dedicated: bool) -> Value {
    daemon.admin(&json!({ "method": "disk.set", "disk": "d", "dedicated": dedicated }))
}

/// Of each worker, whose it is and how many queues it has.
fn workers(daemon: &Daemon) -> Vec<(Option<String>, u64)> {
    let answer = daemon.admin(&json!({ "method": "workers" }));
    let of = |worker: &Value| (worker["dedicated_to"].as_str().map(str::to_owned), worker["queues"].as_u64().expect("a number"));
    answer["workers"].as_array().expect("a list").iter().map(of).collect()
}

#[test]
fn worker_with_a_client_of_a_network_becomes_nobodys_own() {
    let networks = ["x", "y", "z"].map(|name| format!("[[network]]\nname = \"{name}\"\n[[network.port]]\nname = \"p\"\n"));
    let mut daemon = start(&format!("{}[[disk]]\nname = \"d\"\nspec = \"memory:1M\"\n", networks.concat()), 3);
    let port = |name| Port::attach(&daemon.socket(), &AttachOptions::new(name)).expect("attached");
    let (x, y, z) = (port("x/p"), port("y/p"), port("z/p"));
    eventually("one network at each", || workers(&daemon) == [(None, 2), (None, 2), (None, 2)]);
    let refused = dedicate(&daemon, true);
    let pieces = ["no worker is left for disk 'd'", "('y/p', 'z/p')", "start more (--workers, workers), or detach those clients"];
    assert_says(refused["error"].as_str().expect("refused"), &pieces);
    assert!(workers(&daemon).iter().all(|(owner, _)| owner.is_none()));
    y.detach().expect("detached");
    // Not the last, where one stays.
    eventually("one is free", || dedicate(&daemon, true)["dedicated"] == true);
    let (disk, queue) = daemon.client(&Daemon::options("d"));
    let own = Some("disk:d".to_owned());
    eventually("the disk has a worker to itself", || workers(&daemon) == [(None, 2), (own.clone(), 1), (None, 2)]);
    // Another network's client is with the others.
    let y = Port::attach(&daemon.socket(), &AttachOptions::new("y/p")).expect("attached");
    eventually("the new client is served", || workers(&daemon).iter().map(|(_, queues)| queues).sum::<u64>() == 7);
    assert_eq!(workers(&daemon)[1], (own.clone(), 1));
    daemon.take_over();
    eventually("as before", || workers(&daemon).contains(&(own.clone(), 1)));
    disk.detach(vec![queue]).expect("in order");
    [x, y, z].into_iter().for_each(|port| port.detach().expect("detached"));
}
