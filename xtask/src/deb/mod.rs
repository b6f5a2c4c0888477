//! `cargo xtask deb`: Debian packages of what ships, from the prefix that `cargo xtask dist` filled.
//!
//! `packaging/debian` describes them as Debian's tools have it: `control`, and what goes where in NAME.install, of the prefix or, after
//! `repository:`, of the repository; a `*` is the rest of a file name.

mod debug;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::Dist;
use crate::files::{self, list, list_ending, name_of, read_text};
use crate::setup::is_installed;
use crate::step::{self, Tally, print};

/// Of this packaging, not of the program.
const REVISION: &str = "1";
/// Programs without which no package can be made.
const NEEDS: [&str; 5] = ["dpkg-deb", "dpkg-shlibdeps", "dpkg-gencontrol", "readelf", "gzip"];
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Most that a package may take once it is installed, in bytes: it is on every machine that has a disk.
const MOST_BYTES: [(&str, u64); 1] = [("fipsee", 12_000_000)];

/// What is the same for all packages.
struct Build<'a> {
    dist: &'a Dist,
    output: PathBuf,
    version: String,
    architecture: String,
    multiarch: String,
    /// Of the fio that the engine was built for.
    fio: String,
    /// Every file is as old as the last commit, so that the same commit makes the same packages.
    epoch: u64,
}

/// Make every package with its parts built.
pub(crate) fn run(dist: &Dist, tally: &mut Tally) {
    if let Some(program) = NEEDS.iter().find(|program| !is_installed(program)) {
        return tally.skip("deb", &format!("{program} is not installed; run `cargo xtask setup` as root"));
    }
    let output = dist.target.join("debian");
    // A package of another version would be installed beside the new ones.
    let _ = fs::remove_dir_all(&output);
    let build = match Build::new(dist, output) {
        Ok(build) => build,
        Err(text) => return tally.check("deb", || Err(text)),
    };
    for path in list_ending(&dist.root.join("packaging/debian"), "install") {
        let package = name_of(&path).trim_end_matches(".install").to_owned();
        let name = format!("deb {package}");
        match build.contents(&path) {
            Ok(contents) => tally.check(&name, || build.package(&package, &contents)),
            Err(missing) => tally.skip(&name, &format!("{missing} was not built; `cargo xtask dist` says why")),
        }
    }
}

impl<'a> Build<'a> {
    fn new(dist: &'a Dist, output: PathBuf) -> Result<Self, String> {
        let fio = if is_installed("fio") { print(Command::new("fio").arg("--version"))? } else { String::new() };
        Ok(Self {
            dist,
            output,
            version: format!("{}-{REVISION}", env!("CARGO_PKG_VERSION")),
            architecture: print(Command::new("dpkg").arg("--print-architecture"))?,
            multiarch: print(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?,
            fio: fio.trim_start_matches("fio-").to_owned(),
            epoch: dist.epoch()?,
        })
    }

    /// Each file of a package, and the folder it goes to; or what is not there.
    fn contents(&self, list: &Path) -> Result<Vec<(PathBuf, String)>, String> {
        let mut contents = Vec::new();
        for line in read_text(list)?.lines() {
            let (from, to) = line.split_once(' ').ok_or_else(|| format!("{}: '{line}' has no folder", list.display()))?;
            let path = match from.strip_prefix("repository:") {
                Some(path) => self.dist.root.join(path),
                None => self.dist.prefix.join(from),
            };
            let found = matching(&path);
            if found.is_empty() {
                return Err(from.to_owned());
            }
            let to = to.replace("${DEB_HOST_MULTIARCH}", &self.multiarch);
            contents.extend(found.into_iter().map(|path| (path, to.clone())));
        }
        Ok(contents)
    }

    fn package(&self, name: &str, contents: &[(PathBuf, String)]) -> Result<String, String> {
        let work = self.output.join("work").join(name);
        let root = work.join("root");
        for (path, to) in contents {
            let folder = root.join(to);
            if path.extension().is_some_and(|end| end == "whl") {
                // As pip does it, without its notes on what it did.
                step::succeed(Command::new("python3").args(["-m", "zipfile", "--extract"]).args([path, &folder]))?;
            } else {
                self.copy(path, &folder.join(name_of(path)))?;
            }
        }
        self.documents(name, &work, &root)?;
        let files = print(Command::new("find").current_dir(&root).args([".", "-type", "f"]))?;
        let files: Vec<&str> = files.lines().filter_map(|path| path.strip_prefix("./")).collect();
        let is_library = |path: &str| path.ends_with(".so") || path.contains(".so.");
        let linked: Vec<&str> = files.iter().copied().filter(|path| path.starts_with("usr/bin/") || is_library(path)).collect();
        self.control(name, &work, &root, &files, &linked)?;
        self.debug_package(name, &root, &linked)?;
        let bytes: u64 = files.iter().filter_map(|path| fs::metadata(root.join(path)).ok()).map(|file| file.len()).sum();
        if let Some((_, most)) = MOST_BYTES.iter().find(|(limited, most)| *limited == name && bytes > *most) {
            return Err(format!("{name} takes {bytes} bytes when it is installed, and may take {most}"));
        }
        self.pack(name, &root).map(|file| format!("{file}, {} kB installed", bytes.div_ceil(1000)))
    }

    /// The package file of what is below `root`, control files included.
    fn pack(&self, name: &str, root: &Path) -> Result<String, String> {
        let sums =
            "find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\\0' | sort -z | xargs -0 md5sum > DEBIAN/md5sums";
        step::succeed(Command::new("sh").current_dir(root).args(["-euc", sums]))?;
        step::succeed(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(root))?;
        let file = format!("{name}_{}_{}.deb", self.version, self.architecture);
        let mut pack = Command::new("dpkg-deb");
        pack.env("SOURCE_DATE_EPOCH", self.epoch.to_string()).args(["--root-owner-group", "-Zxz", "--build"]);
        step::succeed(pack.arg(root).arg(self.output.join(&file)))?;
        Ok(file)
    }

    /// What the repository has for this package: `packaging/debian/NAME.WHAT`.
    fn own(&self, name: &str, what: &str) -> Option<PathBuf> {
        let path = self.dist.root.join(format!("packaging/debian/{name}.{what}"));
        path.exists().then_some(path)
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<(), String> {
        let failed = |error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
        if let Ok(target) = fs::read_link(from) {
            files::make_folder(to.parent().unwrap_or(to))?;
            return std::os::unix::fs::symlink(target, to).map_err(failed);
        }
        if from.extension().is_some_and(|end| end == "pc") {
            return files::write(to, self.located(&read_text(from)?));
        }
        files::copy(from, to)?;
        let is_program =
            to.parent().is_some_and(|folder| folder.ends_with("usr/bin")) || SCRIPTS.iter().any(|name| to.ends_with(name));
        fs::set_permissions(to, Permissions::from_mode(if is_program { 0o755 } else { 0o644 })).map_err(failed)
    }

    /// A description for pkg-config, which says where the prefix has things, with where Debian has them.
    fn located(&self, description: &str) -> String {
        let line = |line: &str| match line.split_once('=').map(|(key, _)| key) {
            Some("prefix") => "prefix=/usr\n".to_owned(),
            Some("libdir") => format!("libdir=${{prefix}}/lib/{}\n", self.multiarch),
            _ => format!("{line}\n"),
        };
        description.lines().map(line).collect()
    }

    fn documents(&self, name: &str, work: &Path, root: &Path) -> Result<(), String> {
        let folder = root.join("usr/share/doc").join(name);
        let copyright = self.own(name, "copyright").unwrap_or_else(|| self.dist.root.join("packaging/debian/copyright"));
        self.copy(&copyright, &folder.join("copyright"))?;
        self.copy(&self.dist.root.join("CHANGELOG.md"), &folder.join("changelog"))?;
        let (version, date) = (&self.version, self.dist.date("%a, %d %b %Y %H:%M:%S %z")?);
        let changelog = format!(
            "fipsee ({version}) unstable; urgency=medium\n\n  * What changed: changelog.gz beside this file.\n\n -- {}  {date}\n",
            maintainer()
        );
        for path in [work.join("debian/changelog"), folder.join("changelog.Debian")] {
            files::write(&path, &changelog)?;
        }
        let documents = "find usr/share/man usr/share/doc -name 'changelog*' -o -name THIRD-PARTY-NOTICES -o -path '*/man/man*/*' \
                         | xargs gzip -9n --force";
        step::succeed(Command::new("sh").current_dir(root).args(["-c", documents])).map(drop)
    }

    fn control(&self, name: &str, work: &Path, root: &Path, files: &[&str], linked: &[&str]) -> Result<(), String> {
        let folder = root.join("DEBIAN");
        files::make_folder(&folder)?;
        for what in SCRIPTS.into_iter().chain(["triggers", "shlibs"]) {
            if let Some(path) = self.own(name, what) {
                self.copy(&path, &folder.join(what))?;
            }
        }
        let settings: String = files.iter().filter(|path| path.starts_with("etc/")).map(|path| format!("/{path}\n")).collect();
        if !settings.is_empty() {
            files::write(&folder.join("conffiles"), settings)?;
        }
        files::copy(&self.dist.root.join("packaging/debian/control"), &work.join("debian/control"))?;
        if !linked.is_empty() {
            let linked = linked.iter().map(|path| format!("-eroot/{path}"));
            step::succeed(Command::new("dpkg-shlibdeps").current_dir(work).args(linked))?;
        }
        let mut generate = Command::new("dpkg-gencontrol");
        generate.current_dir(work).args([format!("-p{name}"), "-Proot".to_owned(), "-Oroot/DEBIAN/control".to_owned()]);
        step::succeed(generate.arg(format!("-DMaintainer={}", maintainer())).arg(format!("-Vfio:Version={}", self.fio))).map(drop)
    }
}

/// The files that a path with a `*` in its last part means.
fn matching(path: &Path) -> Vec<PathBuf> {
    let name = name_of(path);
    let (head, tail) = name.split_once('*').unwrap_or((&name, ""));
    let mut found = list(path.parent().unwrap_or(path)).unwrap_or_default();
    found.retain(|path| {
        let other = name_of(path);
        other == name || name.contains('*') && other.starts_with(head) && other.ends_with(tail)
    });
    found
}

/// As Debian's tools take it from the environment.
fn maintainer() -> String {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    format!("{} <{}>", variable("DEBFULLNAME", "Fip-see contributors"), variable("DEBEMAIL", "fipsee@packages.invalid"))
}
