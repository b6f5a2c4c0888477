//! `NAME=KIND:ARGS`: valid specifications, and the message for each mistake.

use std::path::Path;
use std::time::Duration;

use fipsee_block::disk::spec::parse_size;
use fipsee_block::disk::wrap::{ErrorOptions, PowerCutOptions};
use fipsee_block::disk::{DirectMode, DiskSpec, FileOptions, KindSpec, MemoryOptions, NullOptions, Wrapper};
use fipsee_block::wire::Operation;
use fipsee_testkit::assert_says;

fn parse(text: &str) -> DiskSpec {
    DiskSpec::parse(text).expect("a description")
}

#[test]
fn every_kind_and_option_is_understood() {
    let null = NullOptions { size_bytes: 1 << 30, block_bytes: Some(4096), read_only: false };
    assert_eq!(
        parse("a=null:1G,block=4096,exclusive"),
        DiskSpec { name: "a".into(), kind: KindSpec::Null(null), ro: false, exclusive: true, shared: false }
    );
    let memory = MemoryOptions {
        size_bytes: 256 << 20,
        max_bytes: Some(1 << 30),
        block_bytes: None,
        huge: true,
        thp: true,
        lock: true,
        overcommit: true,
        read_only: false,
    };
    assert_eq!(parse("b.1=memory:256M,max=1GiB,huge,thp,lock,overcommit").kind, KindSpec::Memory(memory));
    let file = FileOptions {
        path: "/srv/x:y=z.img".into(),
        size_bytes: Some(512 << 20),
        block_bytes: Some(4096),
        direct: DirectMode::Off,
        read_only: false,
    };
    let spec = parse("c=file:/srv/x:y=z.img,size=512M,ro,block=4096,shared,direct=off");
    assert_eq!((spec.kind, spec.ro, spec.exclusive, spec.shared), (KindSpec::File(file), true, false, true));
    let KindSpec::File(plain) = parse("d=file:disk").kind else {
        panic!("a file disk");
    };
    assert_eq!((plain.path.as_path(), plain.direct, plain.block_bytes), (Path::new("disk"), DirectMode::Auto, None));
}

#[test]
fn disks_are_wrapped_in_any_order_and_options_reach_the_one_below() {
    let spec = parse(
        "a=delay:1ms+3us,seed=4:error:op=read+flush,every=3,after=2,sectors=8-15,errno=ENOSPC:powercut:file:/x:y,size=1M,ro",
    );
    let KindSpec::Wrapped(Wrapper::Delay(delay), below) = spec.kind else { panic!("a delay") };
    assert_eq!((delay.fixed, delay.random, delay.seed), (Duration::from_millis(1), Duration::from_micros(3), 4));
    let KindSpec::Wrapped(Wrapper::Error(error), below) = *below else { panic!("errors") };
    let expected = ErrorOptions {
        every: 3,
        after: 2,
        operations: vec![Operation::Read, Operation::Flush],
        sectors: Some((8, 15)),
        errno: rustix::io::Errno::NOSPC,
    };
    assert_eq!(error, expected);
    let KindSpec::Wrapped(Wrapper::PowerCut(cut), below) = *below else { panic!("power cuts") };
    assert_eq!(cut, PowerCutOptions::default());
    let KindSpec::File(file) = *below else { panic!("a file") };
    assert_eq!((file.path.as_path(), file.size_bytes, spec.ro), (Path::new("/x:y"), Some(1 << 20), true));
    let KindSpec::Wrapped(Wrapper::PowerCut(cut), _) = parse("a=powercut:survive=50,seed=7,cache=1M,cut=9:null:1M").kind else {
        panic!("power cuts")
    };
    assert_eq!(cut, PowerCutOptions { survive_percent: 50, seed: 7, cache_bytes: 1 << 20, cut: Some(9) });
}

#[test]
fn mistakes_name_the_disk_the_piece_and_the_remedy() {
    for (text, parts) in [
        ("nonsense", &["disk 'nonsense'", "no '='", "NAME=KIND:ARGS"][..]),
        ("a=nul:1G", &["disk 'a': unknown kind 'nul'; use null, memory or file", "delay:"]),
        ("a=", &["disk 'a': the kind is missing; write KIND:ARGS"]),
        ("=null:1G", &["name is not possible", "1 to 64"]),
        ("a b=null:1G", &["disk 'a b'", "name is not possible"]),
        ("a=null", &["size is missing", "null:SIZE"]),
        ("a=memory:", &["size is missing", "memory:SIZE"]),
        ("a=memory:1X", &["'1X' is not a size", "K, M, G or T"]),
        ("a=memory:-1", &["'-1' is not a size"]),
        ("a=memory:99999999T", &["'99999999T' does not fit 64 bits"]),
        ("a=memory:1G,max", &["'max' needs a value", "max=SIZE"]),
        ("a=memory:1G,max=big", &["max: 'big' is not a size"]),
        ("a=memory:1G,huge=yes", &["'huge' takes no value"]),
        ("a=memory:1G,sise=3", &["unknown option 'sise'", "a memory disk takes max="]),
        ("a=null:1G,huge", &["unknown option 'huge'", "a null disk takes block="]),
        ("a=file:", &["path is missing", "file:PATH"]),
        ("a=file:x,y", &["unknown option 'y'", "a path with a comma needs the configuration file"]),
        ("a=file:x,ro,ro", &["'ro' is given twice"]),
        ("a=file:x,direct=maybe", &["direct=maybe is not possible", "direct=auto"]),
        ("a=delay:memory:1M", &["disk 'a': delay: the time is missing", "delay:5ms:memory:1G"]),
        ("a=delay:5:memory:1M", &["delay: '5' is not a time", "us, ms or s"]),
        ("a=delay:5ms", &["delay: the disk below is missing", "delay:OPTIONS:KIND:ARGS"]),
        ("a=error:every=0:null:1M", &["error: every=0", "use 1"]),
        ("a=error:op=erase:null:1M", &["error: op=erase", "write-zeroes"]),
        ("a=error:sectors=9-8:null:1M", &["error: sectors=9-8", "FIRST-LAST"]),
        ("a=error:errno=EAGAIN:null:1M", &["error: errno=EAGAIN", "ENOSPC"]),
        ("a=powercut:tear:null:1M", &["powercut: unknown option 'tear'", "survive="]),
        ("a=powercut:survive=101:null:1M", &["powercut: survive=101", "0 to 100"]),
        ("a=powercut:seed=x:null:1M", &["powercut: seed=x", "an integer"]),
        ("a=powercut:nul:1M", &["powercut: unknown option 'nul'"]),
        ("a=powercut:seed=1:memory:1M,huge=1", &["'huge' takes no value"]),
        ("a=file:x,block=1024", &["block size '1024'", "block=512 or block=4096"]),
    ] {
        assert_says(&DiskSpec::parse(text).expect_err(text), parts);
    }
}

#[test]
fn opening_errors_begin_with_the_disks_name() {
    let text = parse("vm-7=memory:1000").open().map(|_| ()).expect_err("refused");
    assert_says(&text, &["disk 'vm-7': the size of 1000 bytes is not a multiple of the block size, 512 bytes; use 512 or 1024"]);
    let mut spec = parse("a=null:1M");
    spec.name = "/".into();
    assert_says(&spec.open().map(|_| ()).expect_err("refused"), &["disk '/': this name is not possible"]);
}

#[test]
fn sizes_are_powers_of_1024() {
    for (text, bytes) in [("0", 0), ("512", 512), ("4k", 4096), ("1K", 1024), ("3MiB", 3 << 20), ("2G", 2 << 30), ("8T", 8 << 40)]
    {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in ["", "K", "1KB", "1.5G", " 1", "1 ", "0x10", "+1", "18446744073709551616", "16777216T"] {
        assert!(parse_size(text).is_err(), "{text}");
    }
    assert_eq!(parse_size("16777215T"), Ok(16_777_215 << 40));
}
