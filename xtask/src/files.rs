//! Files and folders, with errors that name them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

fn named<T>(what: &str, path: &Path, outcome: std::io::Result<T>) -> Result<T, String> {
    outcome.map_err(|error| format!("cannot {what} {}: {error}", path.display()))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    named("read", path, fs::read(path))
}

pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    named("read", path, fs::read_to_string(path))
}

/// Write a file, and create the folder that it is in.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    make_folder(path.parent().unwrap_or(path))?;
    named("write", path, fs::write(path, content))
}

pub(crate) fn make_folder(path: &Path) -> Result<(), String> {
    named("create", path, fs::create_dir_all(path))
}

/// A folder with nothing in it.
pub(crate) fn empty_folder(path: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(path);
    make_folder(path)
}

/// Copy a file, and create the folder that the copy is in.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make_folder(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), String> {
    fs::rename(from, to).map_err(|error| format!("cannot rename {} to {}: {error}", from.display(), to.display()))
}

/// Wait until no other thread or process of ours holds this lock, until the file is dropped.
pub(crate) fn lock(path: &Path) -> Result<File, String> {
    make_folder(path.parent().unwrap_or(path))?;
    named("lock", path, File::create(path).and_then(|file| file.lock().map(|()| file)))
}

/// What is in a folder, in order.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut paths: Vec<_> = named("read", folder, fs::read_dir(folder))?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Those of it that end so; none of a folder that is not there.
pub(crate) fn list_ending(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut paths = list(folder).unwrap_or_default();
    paths.retain(|path| path.extension().is_some_and(|end| end == ending));
    paths
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
