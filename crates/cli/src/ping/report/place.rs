//! The directory that takes the page: checked before the measurement, filled after it, in one go.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::Error;

/// The page, which is put in place last: if it exists, the other files do, too.
pub(super) const PAGE: &str = "report.md";
pub(super) const FIGURES: &str = "report.json";
pub(super) const SIZES_PICTURE: &str = "sizes.svg";
pub(super) const WAITS_PICTURE: &str = "waits.svg";
pub(super) const LINES_PICTURE: &str = "figure-6.svg";
/// The files of a report.
const FILES: [&str; 5] = [SIZES_PICTURE, WAITS_PICTURE, LINES_PICTURE, FIGURES, PAGE];
/// The kind in [`FIGURES`], by which an earlier report is recognised.
pub(super) const KIND: &str = "fipsee ping --report";
/// Files are written here first, in the directory itself: a rename crosses no file system.
const UNFINISHED: &str = ".unfinished";
/// Reserves the space of the files, about 120 KiB, during the measurement.
const ROOM: &str = "room";
const ROOM_BYTES: usize = 1 << 20;

/// The directory, and what is undone if no report is written.
pub(super) struct ReportDirectory {
    directory: PathBuf,
    was_created: bool,
    is_filled: bool,
}

impl ReportDirectory {
    /// Make sure that a page can be written to `directory`, which is new, empty, or holds an earlier one.
    pub(super) fn prepare(directory: &Path) -> Result<Self, Error> {
        let cannot = |what: &str, error: &std::io::Error| Error::io(format_args!("{what} {}", directory.display()), error);
        let was_created = match fs::create_dir(directory) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(cannot("create", &error)),
        };
        let place = Self { directory: directory.to_owned(), was_created, is_filled: false };
        if !was_created {
            if !directory.is_dir() {
                return Err(Error::at(directory.display(), "is no directory; name one, or a name that is still free"));
            }
            let entries = fs::read_dir(directory).map_err(|error| cannot("read", &error))?;
            let other = entries.flatten().map(|entry| entry.file_name()).find(|name| name != UNFINISHED);
            if let Some(other) = other.filter(|_| !place.holds_a_report()) {
                let what = format!(
                    "holds {} and no earlier report; name a directory that is new, empty or holds one",
                    other.to_string_lossy()
                );
                return Err(Error::at(directory.display(), what));
            }
        }
        // A failed write must show now, not in ten minutes.
        place.make_unfinished().map_err(|error| cannot("write to", &error))?;
        Ok(place)
    }

    fn holds_a_report(&self) -> bool {
        let text = fs::read(self.directory.join(FIGURES)).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).is_ok_and(|figures| figures["report"] == KIND)
    }

    fn unfinished(&self) -> PathBuf {
        self.directory.join(UNFINISHED)
    }

    fn make_unfinished(&self) -> std::io::Result<()> {
        match fs::remove_dir_all(self.unfinished()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(self.unfinished())?;
        fs::write(self.unfinished().join(ROOM), vec![0; ROOM_BYTES])
    }

    /// Write all files beside their places, then put them there, the page last; other files of an earlier report are removed.
    pub(super) fn fill(mut self, files: &[(&str, String)]) -> Result<PathBuf, Error> {
        let cannot =
            |name: &str, error: &std::io::Error| Error::io(format_args!("write {}", self.directory.join(name).display()), error);
        let old = FILES.iter().filter(|old| files.iter().all(|(name, _)| name != *old));
        let _ = fs::remove_file(self.unfinished().join(ROOM)); // Its space is for the files.
        for (name, text) in files {
            fs::write(self.unfinished().join(name), text).map_err(|error| cannot(name, &error))?;
        }
        for name in old {
            let _ = fs::remove_file(self.directory.join(name)); // Usually it does not exist.
        }
        for name in FILES.iter().filter(|place| files.iter().any(|(name, _)| name == *place)) {
            let put = fs::rename(self.unfinished().join(name), self.directory.join(name));
            put.map_err(|error| cannot(name, &error))?;
        }
        self.is_filled = true;
        Ok(self.directory.join(PAGE))
    }
}

impl Drop for ReportDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.unfinished());
        if self.was_created && !self.is_filled {
            let _ = fs::remove_dir(&self.directory);
        }
    }
}
