//! The file of the last measurement: which files are trusted.

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Scratch, machine, usual_matrix};
use fipsee_ring::tuning::{Choices, Ownership, Touch};
use fipsee_topology::cache::{self, Kept as Measured, Unusable};
use fipsee_topology::choose::{Basis, ByDistance, Chosen, Trial};
use fipsee_topology::machine::{Distance, Machine};

struct Kept {
    _folder: Scratch,
    path: PathBuf,
    machine: Machine,
    measured: Measured,
}

fn kept() -> Kept {
    let folder = Scratch::new();
    let path = folder.0.join("made/on the way/topology.json");
    let machine = machine("two-sockets");
    let measured = Measured { matrix: usual_matrix(&machine), choices: choices() };
    cache::write(&path, &machine, &measured).expect("a temporary directory can be written");
    Kept { _folder: folder, path, machine, measured }
}

fn choices() -> ByDistance {
    let locked = Choices::NONE.with_ownership(Ownership::LockedAhead);
    let trials = vec![
        Trial { tried: locked, ratio: 0.812, taken: true },
        Trial { tried: Choices::NONE.with_touch(Touch::Always), ratio: 1.25, taken: false },
    ];
    let chosen = Chosen {
        choices: locked.with_take(1).as_measured(),
        basis: Basis::Measured,
        floor_ticks: [140.5, 141.0],
        milliseconds: 4.5,
        trials,
    };
    let on_one_core = Chosen { choices: locked, basis: Basis::OneCore, trials: Vec::new(), ..chosen.clone() };
    [(Distance::SameCore, on_one_core), (Distance::SameCache, chosen)].into()
}

#[track_caller]
fn refused(path: &Path, machine: &Machine, part: &str) {
    match cache::read(path, machine) {
        Err(Unusable::Refused(why)) => assert!(why.contains(part) && why.contains("is ignored") && !why.contains('\n'), "{why}"),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_was_kept_is_read_back_and_a_second_writing_replaces_it() {
    let Kept { path, machine, measured, .. } = &kept();
    assert_eq!(cache::read(path, machine).expect("just written"), *measured);
    let mut other = measured.clone();
    other.matrix.tsc_hz = 7;
    other.choices.clear();
    cache::write(path, machine, &other).expect("as before");
    assert_eq!(cache::read(path, machine).expect("just written"), other);
    let files = std::fs::read_dir(path.parent().expect("a folder")).expect("a folder").count();
    assert_eq!(files, 1, "nothing temporary is left");
}

#[test]
fn no_file_is_no_complaint() {
    let Kept { path, machine, .. } = &kept();
    let missing = cache::read(&path.with_extension("other"), machine);
    assert!(matches!(missing, Err(Unusable::Missing)), "{missing:?}");
}

#[test]
fn file_of_another_machine_or_of_other_cpus_is_ignored() {
    let Kept { path, .. } = &kept();
    for name in ["two-cpus", "two-sockets-no-smt", "epyc"] {
        refused(path, &machine(name), "another machine");
    }
}

#[test]
fn truncated_file_is_ignored_wherever_it_ends() {
    let Kept { path, machine, .. } = &kept();
    let whole = std::fs::read(path).expect("just written");
    for length in (0..whole.len()).step_by(61).chain([whole.len() - 1]) {
        std::fs::write(path, &whole[..length]).expect("written");
        refused(path, machine, "damaged");
    }
    std::fs::write(path, b"\xff\xfe\x00").expect("written");
    refused(path, machine, "");
}

#[test]
fn figures_that_cannot_have_been_measured_are_ignored() {
    let Kept { path, machine, .. } = &kept();
    let text = std::fs::read_to_string(path).expect("just written");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let edit = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut edited = value.clone();
        change(&mut edited);
        std::fs::write(path, edited.to_string()).expect("written");
    };
    edit(&|_| {});
    assert!(cache::read(path, machine).is_ok());
    let cost = |column: usize, wrong: serde_json::Value| edit(&|file| file["costs"][3][column] = wrong.clone());
    for (column, wrong) in
        [(0, 99.into()), (1, 16.into()), (2, 0.into()), (2, (-5).into()), (2, 1e300.into()), (3, 0.0.into()), (3, 1e6.into())]
    {
        cost(column, wrong);
        refused(path, machine, "cannot have been measured");
    }
    for (column, wrong) in [(2, "1".into()), (2, serde_json::Value::Null), (0, (-1).into())] {
        cost(column, wrong);
        refused(path, machine, "damaged");
    }
    edit(&|file| file["costs"][0] = file["costs"][1].clone());
    refused(path, machine, "missing in it, or there twice");
    edit(&|file| drop(file["costs"].as_array_mut().expect("a list").pop()));
    refused(path, machine, "missing in it");
    edit(&|file| file["costs"] = serde_json::json!([]));
    refused(path, machine, "cannot have been measured");
    for key in ["tsc_hz", "own_ticks"] {
        edit(&|file| file[key] = 0.into());
        refused(path, machine, "cannot have been measured");
    }
    for version in [0, 1, 3] {
        edit(&|file| file["version"] = version.into());
        refused(path, machine, &format!("has version {version}, and this program writes 2"));
    }
    edit(&|file| file["comment"] = "edited by hand".into());
    refused(path, machine, "damaged");
}

#[test]
fn choices_that_cannot_have_been_made_are_ignored() {
    let Kept { path, machine, .. } = &kept();
    let text = std::fs::read_to_string(path).expect("just written");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let edit = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut edited = value.clone();
        change(&mut edited["choices"]);
        std::fs::write(path, edited.to_string()).expect("written");
    };
    edit(&|_| {});
    assert!(cache::read(path, machine).is_ok());
    for (key, wrong) in [
        ("distance", "elsewhere".into()),
        ("choices", 0x20_0000.into()),
        ("choices", u32::MAX.into()),
        ("floor_ticks", serde_json::json!([0.0, 140.0])),
        ("floor_ticks", serde_json::json!([140.0, 1e9])),
        ("milliseconds", (-1).into()),
        ("milliseconds", 1e9.into()),
        ("trials", serde_json::json!([[1, 0.0, true]])),
        ("trials", serde_json::json!([[1, 1e300, true]])),
        ("trials", serde_json::json!([[0x8000_0000_u32, 1.0, true]])),
        ("trials", serde_json::json!(vec![(1, 1.0, true); 33])),
    ] {
        edit(&|choices| choices[1][key] = wrong.clone());
        refused(path, machine, "cannot have been measured");
    }
    for (key, wrong) in [
        ("choices", serde_json::json!(1_u64 << 32)),
        ("choices", (-1).into()),
        ("trials", serde_json::json!([[1, true]])),
        ("is_measured", 1.into()),
        ("more", 1.into()),
    ] {
        edit(&|choices| choices[1][key] = wrong.clone());
        refused(path, machine, "damaged");
    }
    edit(&|choices| choices[0] = choices[1].clone());
    refused(path, machine, "choices are there twice");
    // Fields of a later version, within the word, are no advice and no fault.
    edit(&|choices| choices[1]["choices"] = 0x001f_fff1.into());
    let kept = cache::read(path, machine).expect("any value of a field");
    let expected = Choices::NONE.with_ownership(Ownership::PrefetchNext).as_measured();
    assert_eq!(kept.choices[&Distance::SameCache].choices, expected);
}

#[test]
fn file_that_others_may_have_written_is_ignored() {
    let Kept { path, machine, .. } = &kept();
    for mode in [0o666, 0o664, 0o646] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("our file");
        refused(path, machine, "others than root and this user");
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("our file");
    assert!(cache::read(path, machine).is_ok());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(65_534), None).expect("root may");
        refused(path, machine, "others than root and this user");
    }
}

#[test]
fn neither_links_nor_folders_nor_pipes_are_read() {
    let Kept { path, machine, .. } = &kept();
    let beside = |name: &str| path.with_file_name(name);
    symlink(path, beside("link")).expect("a link");
    refused(&beside("link"), machine, "");
    refused(path.parent().expect("a folder"), machine, "no regular file");
    let pipe = beside("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, 0).expect("a pipe");
    refused(&pipe, machine, "no regular file");
}

#[test]
fn place_that_cannot_be_written_is_an_error_and_leaves_nothing() {
    let Kept { path, machine, measured, .. } = &kept();
    let below_a_file = path.join("x.json");
    assert!(cache::write(&below_a_file, machine, measured).is_err());
    let folder = path.with_file_name("folder");
    std::fs::create_dir(&folder).expect("a folder");
    assert!(cache::write(&folder, machine, measured).is_err(), "a folder is in the way");
    let left = std::fs::read_dir(path.parent().expect("a folder")).expect("a folder").count();
    assert_eq!(left, 2, "the first file and the folder");
}
