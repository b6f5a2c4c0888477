//! `cargo xtask deb`: Debian packages of what ships, from the prefix that `cargo xtask dist` filled.

mod packages;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::packages::{PACKAGES, Package};
use self::stage::Stage;
use crate::dist::Dist;
use crate::setup::is_installed;
use crate::step::{self, Tally};

/// Of this packaging, not of the program.
const REVISION: &str = "1";
/// Programs without which no package can be made.
const NEEDS: [&str; 4] = ["dpkg-deb", "dpkg-shlibdeps", "strip", "gzip"];

/// What is the same for all packages.
pub(super) struct Build<'a> {
    pub(super) dist: &'a Dist,
    version: String,
    architecture: String,
    multiarch: String,
    /// Of the fio that the engine was built for.
    fio: String,
    /// Seconds; every file is as old as the last commit, so that the same commit makes the same packages.
    pub(super) epoch: u64,
}

/// Make every package with its parts built.
pub(crate) fn run(dist: &Dist, tally: &mut Tally) {
    if let Some(program) = NEEDS.iter().find(|program| !is_installed(program)) {
        return tally.skip("deb", &format!("{program} is not installed; run `cargo xtask setup` as root"));
    }
    let output = dist.target.join("debian");
    // A package of another version would be installed beside the new ones.
    let _ = fs::remove_dir_all(&output);
    let build = match Build::new(dist) {
        Ok(build) => build,
        Err(text) => return tally.check("deb", || Err(text)),
    };
    for package in &PACKAGES {
        let name = format!("deb {}", package.name);
        if dist.prefix.join(package.needs).exists() {
            tally.check(&name, || build.package(package, &output));
        } else {
            tally.skip(&name, &format!("{} was not built; `cargo xtask dist` says why", package.needs));
        }
    }
}

impl<'a> Build<'a> {
    fn new(dist: &'a Dist) -> Result<Self, String> {
        let fio = if is_installed("fio") { print(Command::new("fio").arg("--version"))? } else { String::new() };
        Ok(Self {
            dist,
            version: format!("{}-{REVISION}", env!("CARGO_PKG_VERSION")),
            architecture: print(Command::new("dpkg").arg("--print-architecture"))?,
            multiarch: print(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?,
            fio: fio.trim_start_matches("fio-").to_owned(),
            epoch: dist.epoch()?,
        })
    }

    fn package(&self, package: &Package, output: &Path) -> Result<String, String> {
        let stage = Stage::new(self, &output.join("work").join(package.name))?;
        for (from, to) in package.files {
            stage.install(from, &self.fill(to))?;
        }
        self.documents(&stage, package)?;
        self.control(&stage, package)?;
        stage.finish()?;
        let file = format!("{}_{}_{}.deb", package.name, self.version, self.architecture);
        let mut pack = Command::new("dpkg-deb");
        pack.env("SOURCE_DATE_EPOCH", self.epoch.to_string()).args(["--root-owner-group", "-Zxz", "--build"]);
        step::succeed(pack.arg(stage.root()).arg(output.join(&file)))?;
        Ok(file)
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{multiarch}", &self.multiarch).replace("{version}", &self.version).replace("{fio}", &self.fio)
    }

    /// Whatever the repository has for this package: `packaging/debian/NAME.WHAT`.
    fn own(&self, package: &Package, what: &str) -> Option<PathBuf> {
        let path = self.dist.root.join(format!("packaging/debian/{}.{what}", package.name));
        path.exists().then_some(path)
    }

    fn documents(&self, stage: &Stage<'_>, package: &Package) -> Result<(), String> {
        let folder = format!("usr/share/doc/{}", package.name);
        let copyright = self.own(package, "copyright");
        let copyright = copyright.unwrap_or_else(|| self.dist.root.join("packaging/debian/copyright"));
        stage.copy(&copyright, &format!("{folder}/copyright"))?;
        let date = print(Command::new("date").args(["--utc", "-R", "-d", &format!("@{}", self.epoch)]))?;
        let changelog = format!(
            "fipsee ({}) unstable; urgency=medium\n\n  * Built from the repository; see CHANGELOG.md there.\n\n -- {}  {date}\n",
            self.version,
            maintainer()
        );
        stage.write(&format!("{folder}/changelog.Debian"), &changelog)?;
        for path in stage.files()? {
            let name = path.to_string_lossy();
            if name.contains("/share/man/man") || name.ends_with("/changelog.Debian") {
                step::succeed(Command::new("gzip").args(["-9n", "--force"]).arg(stage.root().join(&path)))?;
            }
        }
        Ok(())
    }

    fn control(&self, stage: &Stage<'_>, package: &Package) -> Result<(), String> {
        for script in ["postinst", "prerm", "postrm", "triggers", "shlibs"] {
            if let Some(path) = self.own(package, script) {
                stage.copy(&path, &format!("DEBIAN/{script}"))?;
            }
        }
        if !package.conffiles.is_empty() {
            stage.write("DEBIAN/conffiles", &format!("{}\n", package.conffiles.join("\n")))?;
        }
        let mut depends: Vec<String> = package.depends.iter().map(|depends| self.fill(depends)).collect();
        depends.extend(stage.library_packages()?);
        let mut fields = vec![
            ("Package", package.name.to_owned()),
            ("Source", "fipsee".to_owned()),
            ("Version", self.version.clone()),
            ("Architecture", self.architecture.clone()),
            ("Maintainer", maintainer()),
            ("Installed-Size", stage.size_kib()?.to_string()),
        ];
        fields.extend(package.fields.iter().map(|(name, value)| (*name, self.fill(value))));
        if !depends.is_empty() {
            fields.push(("Depends", depends.join(", ")));
        }
        fields.push(("Section", package.section.to_owned()));
        fields.push(("Priority", "optional".to_owned()));
        fields.push(("Description", format!("{}\n {}", package.summary, package.description.replace('\n', "\n "))));
        let text: String = fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        stage.write("DEBIAN/control", &text)
    }
}

/// As Debian's tools take it from the environment.
fn maintainer() -> String {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    format!("{} <{}>", variable("DEBFULLNAME", "Fip-see contributors"), variable("DEBEMAIL", "fipsee@packages.invalid"))
}

fn print(command: &mut Command) -> Result<String, String> {
    let output = step::output(command);
    if output.succeeded { Ok(output.text.trim().to_owned()) } else { Err(format!("{command:?}\n{}", output.text)) }
}
