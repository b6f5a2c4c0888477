//! What takes minutes to build and is the same for every clone of the repository: kept in the user's cache, in folders with names
//! that change with what they are built from.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::files::{self, name_of};

/// What was not used for so long is removed when something newer is built.
const KEPT_FOR: Duration = Duration::from_secs(14 * 24 * 3600);

/// The folder, in which no other run builds or removes anything meanwhile.
pub(super) struct Kept {
    pub(super) folder: PathBuf,
    _lock: File,
}

impl Kept {
    pub(super) fn lock() -> Result<Self, String> {
        let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = named.or_else(|| Some(std::env::home_dir()?.join(".cache")));
        let folder =
            caches.ok_or("what guests run is kept in XDG_CACHE_HOME or ~/.cache, and this user has neither")?.join("fipsee");
        let lock = files::lock(&folder.join("lock"))?;
        Ok(Self { folder, _lock: lock })
    }

    /// Remove what begins with `prefix` but is not `name`: others may still be used by another clone, if they were lately.
    pub(super) fn remove_old(&self, prefix: &str, name: &str) {
        for path in files::list(&self.folder).unwrap_or_default() {
            let other = name_of(&path);
            if other.starts_with(prefix) && other != name && is_old(&path, SystemTime::now()) {
                // Space that stays used is all that goes wrong.
                let _ = fs::remove_dir_all(path);
            }
        }
    }
}

/// A build that was cut short is as old as its folder.
fn is_old(folder: &Path, now: SystemTime) -> bool {
    let used = fs::metadata(folder.join("built")).or_else(|_| fs::metadata(folder)).and_then(|metadata| metadata.modified());
    used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > KEPT_FOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_long_is_old_whether_it_was_finished_or_not() {
        let folder = std::env::temp_dir().join(format!("fipsee-kept-{}", std::process::id()));
        files::make_folder(&folder).expect("a folder");
        let (now, later) = (SystemTime::now(), SystemTime::now() + KEPT_FOR + Duration::from_secs(60));
        assert!(!is_old(&folder, now) && is_old(&folder, later));
        let built = File::create(folder.join("built")).expect("a file");
        built.set_modified(later).expect("its time");
        assert!(!is_old(&folder, later) && is_old(&folder, later + KEPT_FOR + Duration::from_secs(60)));
        fs::remove_dir_all(&folder).expect("it is there");
        assert!(!is_old(&folder, later), "what is gone is not old");
    }
}
