//! A file system with real files goes through the disks and comes back unchanged.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_testkit::{Scratch, skip};

use crate::program::{Fipsee, assert_success, serve, text};

/// Size of the image: several times what any cache between the tools holds.
const IMAGE_BYTES: u64 = 400 << 20;
/// Most bytes of files in it.
const CONTENT_BYTES: u64 = 280 << 20;
/// With less than this the test is skipped.
const FEWEST_CONTENT_BYTES: u64 = 16 << 20;

/// Copy regular files below `from` into `to`, until `left_bytes` are used up.
fn collect(from: &Path, to: &Path, left_bytes: &mut u64) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    let mut entries: Vec<_> = std::fs::read_dir(from)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = std::fs::symlink_metadata(&source)?;
        if metadata.is_dir() {
            collect(&source, &target, left_bytes)?;
        } else if metadata.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&source)?, &target)?;
        } else if metadata.is_file() && metadata.len() <= *left_bytes && File::open(&source).is_ok() {
            std::fs::copy(&source, &target)?;
            *left_bytes -= metadata.len();
        }
    }
    Ok(())
}

fn tool(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists())
}

fn assert_clean(e2fsck: &Path, image: &Path) {
    let output = Command::new(e2fsck).arg("-fn").arg(image).output().expect("e2fsck runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", image.display());
}

#[track_caller]
fn assert_identical(one: &Path, other: &Path) {
    let mut files = [one, other].map(|path| File::open(path).expect("an image"));
    let mut pieces = [vec![0; 1 << 20], vec![0; 1 << 20]];
    for offset in (0..IMAGE_BYTES).step_by(1 << 20) {
        for (file, piece) in files.iter_mut().zip(&mut pieces) {
            file.read_exact(piece).expect("as long as the image");
        }
        assert!(pieces[0] == pieces[1], "{} differs within 1 MiB of byte {offset}", other.display());
    }
    assert!(files.iter_mut().all(|file| file.read(&mut [0]).expect("readable") == 0), "both end there");
}

#[test]
fn ext4_image_comes_back_identical_from_memory_and_from_a_file_across_a_restart() {
    let (Some(mke2fs), Some(e2fsck)) = (tool("mke2fs"), tool("e2fsck")) else {
        return skip("ext4 image", "mke2fs and e2fsck are missing; install e2fsprogs");
    };
    let work = Scratch::new();
    let (content, image) = (work.path("content"), work.path("image"));
    let mut left_bytes = CONTENT_BYTES;
    for part in ["/usr/share", "/usr/lib"] {
        collect(Path::new(part), &content.join(part.trim_start_matches('/')), &mut left_bytes).expect("readable files");
    }
    let content_bytes = CONTENT_BYTES - left_bytes;
    if content_bytes < FEWEST_CONTENT_BYTES {
        return skip("ext4 image", "there are too few files below /usr to fill an image with");
    }
    let made = Command::new(mke2fs).args(["-q", "-F", "-t", "ext4", "-d"]).arg(&content).arg(&image).arg("400M").output();
    let made = made.expect("mke2fs runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::remove_dir_all(&content).expect("no longer needed");
    assert_clean(&e2fsck, &image);

    let disks = [format!("m=memory:{IMAGE_BYTES}"), format!("f=file:{{dir}}/disk,size={IMAGE_BYTES}")];
    let mut daemon = serve(&disks.each_ref().map(String::as_str));
    for disk in ["fip:m", "fip:f"] {
        assert_success(&daemon.fipsee(&["cp", "--no-progress", &text(&image), disk]));
    }
    let from_memory = work.path("from-memory");
    assert_success(&daemon.fipsee(&["cp", "--no-progress", "fip:m", &text(&from_memory)]));
    assert_identical(&image, &from_memory);
    std::fs::remove_file(&from_memory).expect("no longer needed");
    daemon.kill_9();
    daemon.restart();
    let from_file = work.path("from-file");
    assert_success(&daemon.fipsee(&["cp", "--no-progress", "fip:f", &text(&from_file)]));
    assert_identical(&image, &from_file);
    assert_clean(&e2fsck, &from_file);
    println!("{} MiB of files in an image of {} MiB", content_bytes >> 20, IMAGE_BYTES >> 20);
}
