//! `NAME=KIND:ARGS`: what is understood, and what each mistake is told.

mod disk_common;

use std::path::Path;

use disk_common::expect_parts;
use fipsee_block::disk::spec::parse_size;
use fipsee_block::disk::{DirectMode, DiskSpec, FileOptions, KindSpec, MemoryOptions, NullOptions};

fn parse(text: &str) -> DiskSpec {
    DiskSpec::parse(text).expect("a description")
}

#[test]
fn every_kind_and_option_is_understood() {
    let null = NullOptions { size_bytes: 1 << 30, block_bytes: 4096, read_only: false };
    assert_eq!(
        parse("a=null:1G,block=4096,exclusive"),
        DiskSpec { name: "a".into(), kind: KindSpec::Null(null), ro: false, exclusive: true }
    );
    let memory = MemoryOptions {
        size_bytes: 256 << 20,
        max_bytes: Some(1 << 30),
        block_bytes: 512,
        huge: true,
        thp: true,
        lock: true,
        read_only: false,
    };
    assert_eq!(parse("b.1=memory:256M,max=1GiB,huge,thp,lock").kind, KindSpec::Memory(memory));
    let file = FileOptions {
        path: "/srv/x:y=z.img".into(),
        size_bytes: Some(512 << 20),
        block_bytes: Some(4096),
        direct: DirectMode::Off,
        read_only: false,
    };
    let spec = parse("c=file:/srv/x:y=z.img,size=512M,ro,block=4096,direct=off");
    assert_eq!((spec.kind, spec.ro, spec.exclusive), (KindSpec::File(file), true, false));
    let KindSpec::File(plain) = parse("d=file:disk").kind else {
        panic!("a file disk");
    };
    assert_eq!((plain.path.as_path(), plain.direct, plain.block_bytes), (Path::new("disk"), DirectMode::Auto, None));
}

#[test]
fn mistakes_name_the_disk_the_piece_and_the_remedy() {
    for (text, parts) in [
        ("nonsense", &["disk 'nonsense'", "no '='", "NAME=KIND:ARGS"][..]),
        ("a=nul:1G", &["disk 'a': unknown kind 'nul'; use null, memory or file"]),
        ("a=", &["disk 'a': unknown kind ''"]),
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
        ("a=file:x,block=1024", &["block size '1024'", "block=512 or block=4096"]),
    ] {
        expect_parts(&DiskSpec::parse(text).expect_err(text), parts);
    }
}

#[test]
fn opening_errors_begin_with_the_disks_name() {
    let text = parse("vm-7=memory:1000").open().map(|_| ()).expect_err("refused");
    expect_parts(&text, &["disk 'vm-7': the size of 1000 bytes is not a multiple of the block size, 512 bytes; use 512 or 1024"]);
    let mut spec = parse("a=null:1M");
    spec.name = "/".into();
    expect_parts(&spec.open().map(|_| ()).expect_err("refused"), &["disk '/': this name is not possible"]);
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
