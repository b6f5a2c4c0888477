//! A cpio archive as the kernel unpacks it into its first file system ("newc").

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const TRAILER: &str = "TRAILER!!!";

/// An archive that grows.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Add a file under a path without leading slash, and the folders it needs.
    pub(super) fn add(&mut self, path: &str, content: &[u8]) -> Result<(), String> {
        for (end, _) in path.match_indices('/') {
            let folder = path[..end].to_owned();
            if self.folders.insert(folder.clone()) {
                self.entry(&folder, DIRECTORY, &[])?;
            }
        }
        self.entry(path, PROGRAM, content)
    }

    /// Add the file at `from`.
    pub(super) fn add_file(&mut self, path: &str, from: &Path) -> Result<(), String> {
        let content = fs::read(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
        self.add(path, &content)
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Result<Vec<u8>, String> {
        self.entry(TRAILER, 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<(), String> {
        let too_large = |_| format!("{path} is too large for a cpio archive");
        let length = u32::try_from(content.len()).map_err(too_large)?;
        let name_length = u32::try_from(path.len() + 1).map_err(too_large)?;
        self.entries += 1;
        // Number, mode, owner, group, links, time, length, device twice, length of the name, no checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_their_files_and_once() {
        let mut archive = Archive::default();
        archive.add("a/b/one", b"1").expect("it is small");
        archive.add("a/b/two", b"22222").expect("it is small");
        let bytes = archive.finish().expect("it is small");
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<_> =
            ["a\0", "a/b\0", "a/b/one\0", "a/b/two\0", "TRAILER!!!\0"].iter().map(|name| text.find(name)).collect();
        assert!(names.iter().all(Option::is_some) && names.is_sorted(), "{names:?}");
        assert_eq!(text.matches("070701").count(), 5);
        assert_eq!(bytes.len() % 4, 0);
    }
}
