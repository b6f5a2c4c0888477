//! What administrators write: requests to the admin socket, the configuration file, descriptions of disks.

use fipsee_block::disk::DiskSpec;
use fipsee_daemon::{admin, config};

pub(crate) fn one_admin(bytes: &[u8]) {
    if let Err(answer) = admin::check(&String::from_utf8_lossy(bytes)) {
        assert!(answer.starts_with("{\"error\":") && !answer.contains(char::is_control), "{answer:?}");
    }
}

pub(crate) fn one_config(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match config::disks_of(text) {
        Ok(disks) => disks.iter().for_each(|disk| check_disk(&disk.spec)),
        Err(text) => assert!(!text.trim().is_empty()),
    }
}

pub(crate) fn one_spec(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match DiskSpec::parse(text) {
        Ok(spec) => check_disk(&spec),
        Err(text) => assert!(!text.trim().is_empty()),
    }
}

fn check_disk(spec: &DiskSpec) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    assert!((1..=64).contains(&spec.name.len()) && spec.name.bytes().all(is_plain), "{spec:?}");
}

fn of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn admin_seeds() -> Vec<Vec<u8>> {
    of(&[
        r#"{"request":"list"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"disk.list"}"#,
        r#"{"jsonrpc":"2.0","id":"x","method":"disk.info","params":{"disk":"a"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"disk.add","params":{"spec":"a=file:,ro","path":"/a","allow_uids":[1],"allow_gids":[2],"allow_everyone":true,"vhost_user":["/run/a"],"file_passed":true}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"disk.set","params":{"disk":"a","allow_uids":[1],"shared":true}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"disk.resize","params":{"disk":"a","size_bytes":1048576}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"disk.attach","params":{"disk":"a","vhost_user":"/run/a"}}"#,
        r#"{"jsonrpc":"2.0","method":"reload","params":{}}"#,
        r#"[{"jsonrpc":"2.0","id":2,"method":"stat"}]"#,
    ])
}

pub(crate) fn config_seeds() -> Vec<Vec<u8>> {
    of(&[
        "listen = \"/run/s\"\nworkers = 2\ncpus = [1, 2]\nplacement = \"auto\"\nwait = \"adaptive\"\nlook_us = 5\n\
         max_clients = 9\nmax_queues = 2\nmax_depth = 4\nmax_pool_bytes = 1\nmax_memory_bytes = 2\nlog_level = \"info\"\n\
         log_format = \"json\"\n",
        "[[disk]]\nname = \"a\"\nspec = \"file:,size=1M\"\npath = \"/d,1\"\nvhost_user = \"/run/v\"\nallow_uids = [1]\n\
         allow_gids = [2]\nallow_everyone = true\n",
        "[[disk]]\nname = \"m\"\nspec = \"memory:64K,max=1G,thp,lock,ro\"\n",
        "max_pool_bytes = \"1M\"\n[[disk]]\nname = \"k\"\nkind = \"file\"\npath = \"/d\"\nsize = \"1M\"\nblock = 4096\n\
         direct = \"on\"\nread_only = true\nallow_users = [\"1\", 2]\nallow_groups = [\"disk\"]\n\
         delay = { time = \"1ms\", random = \"1ms\" }\nerror = { every = 2, op = [\"read\", \"flush\"] }\n",
        "[[disk]]\nname = \"k\"\nkind = \"memory\"\nsize = 0x1000\nmax = \"1G\"\npages = \"thp\"\nlock = true\n\
         overcommit = true\npowercut = { survive = 3 }\n",
    ])
}

pub(crate) fn spec_seeds() -> Vec<Vec<u8>> {
    of(&[
        "a=null:1G,block=4096,exclusive",
        "b=memory:256M,max=1G,thp,huge,lock,ro,shared",
        "c=file:/dev/a,size=512M,block=512,direct=auto,ro",
    ])
}
