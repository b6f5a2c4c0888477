//! The tree of one package before it is packed.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::{Build, print};
use crate::step;

/// The first bytes of programs and shared libraries, and of static libraries.
const ELF: &[u8] = b"\x7fELF";
const ARCHIVE: &[u8] = b"!<arch>\n";

pub(super) struct Stage<'a> {
    build: &'a Build<'a>,
    work: PathBuf,
}

impl<'a> Stage<'a> {
    pub(super) fn new(build: &'a Build<'a>, work: &Path) -> Result<Self, String> {
        let stage = Self { build, work: work.to_owned() };
        make_folder(&stage.root())?;
        Ok(stage)
    }

    pub(super) fn root(&self) -> PathBuf {
        self.work.join("root")
    }

    /// Put what `from` names (packages.rs says how) into the folder `to`.
    pub(super) fn install(&self, from: &str, to: &str) -> Result<(), String> {
        let (base, pattern) = match from.strip_prefix("repository:") {
            Some(pattern) => (&self.build.dist.root, pattern),
            None => (&self.build.dist.prefix, from),
        };
        let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
        let folder = base.join(folder);
        let Some((head, tail)) = name.split_once('*') else { return self.copy(&folder.join(name), &format!("{to}{name}")) };
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(head) && name.ends_with(tail) {
                found.push(name);
            }
        }
        found.sort();
        for name in &found {
            let path = folder.join(name);
            if name.ends_with(".whl") {
                self.unpack_wheel(&path, to)?;
            } else {
                self.copy(&path, &format!("{to}{name}"))?;
            }
        }
        Ok(())
    }

    /// As pip does it, without its notes on what it did.
    fn unpack_wheel(&self, wheel: &Path, to: &str) -> Result<(), String> {
        let target = self.root().join(to);
        make_folder(&target)?;
        step::succeed(Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(wheel).arg(&target)).map(|_| ())
    }

    pub(super) fn copy(&self, from: &Path, to: &str) -> Result<(), String> {
        let to = self.root().join(to);
        make_folder(to.parent().unwrap_or(&self.work))?;
        let failed = |error: std::io::Error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
        if let Ok(target) = fs::read_link(from) {
            return std::os::unix::fs::symlink(target, &to).map_err(failed);
        }
        if from.extension().is_some_and(|end| end == "pc") {
            return fs::read_to_string(from).and_then(|text| fs::write(&to, self.located(&text))).map_err(failed);
        }
        fs::copy(from, &to).map_err(failed)?;
        Ok(())
    }

    /// A description for pkg-config, which says where the prefix has things, with where Debian has them.
    fn located(&self, description: &str) -> String {
        let line = |line: &str| match line.split_once('=').map(|(key, _)| key) {
            Some("prefix") => "prefix=/usr\n".to_owned(),
            Some("libdir") => format!("libdir=${{prefix}}/lib/{}\n", self.build.multiarch),
            _ => format!("{line}\n"),
        };
        description.lines().map(line).collect()
    }

    pub(super) fn write(&self, to: &str, text: &str) -> Result<(), String> {
        let to = self.root().join(to);
        make_folder(to.parent().unwrap_or(&self.work))?;
        fs::write(&to, text).map_err(|error| format!("cannot write {}: {error}", to.display()))
    }

    /// Every file of the package, below its root, in order.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, String> {
        let mut files = Vec::new();
        self.walk(&self.root(), &mut |path, kind| {
            if !kind.is_dir() {
                files.push(path.strip_prefix(self.root()).unwrap_or(path).to_owned());
            }
            Ok(())
        })?;
        files.sort();
        Ok(files)
    }

    fn walk(&self, folder: &Path, visit: &mut dyn FnMut(&Path, fs::FileType) -> std::io::Result<()>) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot look through {}: {error}", folder.display());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                self.walk(&entry.path(), visit)?;
            }
            visit(&entry.path(), kind).map_err(failed)?;
        }
        Ok(())
    }

    /// Packages of the libraries that its programs are linked with; strips them, too.
    pub(super) fn library_packages(&self) -> Result<Vec<String>, String> {
        let mut linked = Vec::new();
        for path in self.files()? {
            let path = self.root().join(path);
            let mut magic = [0; 8];
            let is_read = !path.is_symlink() && File::open(&path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok());
            if is_read && magic == ARCHIVE {
                step::succeed(Command::new("strip").args(["--strip-debug", "--enable-deterministic-archives"]).arg(&path))?;
            } else if is_read && magic.starts_with(ELF) {
                let sections = ["--remove-section=.comment", "--remove-section=.note"];
                step::succeed(Command::new("strip").arg("--strip-unneeded").args(sections).arg(&path))?;
                linked.push(path);
            }
        }
        if linked.is_empty() {
            return Ok(Vec::new());
        }
        // It expects to be in the folder of a source package.
        let control = self.work.join("debian/control");
        make_folder(&self.work.join("debian"))?;
        fs::write(&control, "Source: fipsee\n\nPackage: fipsee\nArchitecture: any\n").map_err(|error| error.to_string())?;
        let mut command = Command::new("dpkg-shlibdeps");
        command.current_dir(&self.work).arg("-O").args(linked.iter().map(|path| format!("-e{}", path.display())));
        let text = print(&mut command)?;
        let depends = text.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
        Ok(depends.unwrap_or_default().split(", ").filter(|package| !package.is_empty()).map(str::to_owned).collect())
    }

    /// As Debian counts it: every file in whole KiB, every folder one.
    pub(super) fn size_kib(&self) -> Result<u64, String> {
        let mut kib = 0;
        self.walk(&self.root(), &mut |path, kind| {
            kib += if kind.is_file() { path.metadata()?.len().div_ceil(1024) } else { 1 };
            Ok(())
        })?;
        Ok(kib)
    }

    /// Check sums, permissions and times.
    pub(super) fn finish(&self) -> Result<(), String> {
        let is_summed = |path: &PathBuf| !path.starts_with("DEBIAN") && !path.starts_with("etc");
        let files: Vec<PathBuf> = self.files()?.into_iter().filter(is_summed).collect();
        let regular = files.iter().filter(|path| !self.root().join(path).is_symlink());
        let sums = print(Command::new("md5sum").current_dir(self.root()).arg("--").args(regular))?;
        self.write("DEBIAN/md5sums", &format!("{sums}\n"))?;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.build.epoch);
        let mode = |path: &Path, is_folder: bool| {
            let is_program = path.starts_with(self.root().join("usr/bin"));
            let is_script = ["postinst", "prerm", "postrm"].iter().any(|name| path.ends_with(format!("DEBIAN/{name}")));
            if is_folder || is_program || is_script { 0o755 } else { 0o644 }
        };
        self.walk(&self.root(), &mut |path, kind| {
            if kind.is_symlink() {
                return Ok(());
            }
            fs::set_permissions(path, Permissions::from_mode(mode(path, kind.is_dir())))?;
            File::open(path)?.set_modified(time)
        })?;
        fs::set_permissions(self.root(), Permissions::from_mode(0o755)).map_err(|error| error.to_string())
    }
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("cannot create {}: {error}", path.display()))
}
