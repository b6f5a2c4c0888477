//! `cargo xtask bench pairs OLD NEW`: builds the daemons that are named by git revisions, and has the suite compare the two.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::dist::{Dist, PROFILE};
use crate::{cargo, end, files, refuse, step};

/// The example of `fipsee-call` that drives typed calls.
const CALLS: &str = "latency";

/// A daemon to measure, and what it is called in the results.
struct Build {
    program: PathBuf,
    name: String,
}

/// Run the comparison with `arguments`: OLD and NEW, each a program or a git revision, then options of the suite.
pub(crate) fn run(root: &Path, arguments: &[String]) -> ExitCode {
    let mut command = cargo(root);
    command.args(["run", "--profile", PROFILE, "--package", "fipsee-bench", "--", "pairs"]);
    match arguments {
        [old, new, options @ ..] if ![old, new].iter().any(|word| word.starts_with('-')) => {
            let builds = provide(root, old).and_then(|old| Ok((old, provide(root, new)?)));
            let (old, new) = match builds {
                Ok(builds) => builds,
                Err(error) => return refuse(&error),
            };
            command.args([&old.program, &new.program]).args(["--names", &old.name, &new.name]).args(options);
        }
        // --help, and errors that the suite reports.
        _ => drop(command.args(arguments)),
    }
    end(command)
}

/// The program at the path `word`, or the daemon of the git revision `word`, built unless it has been.
fn provide(root: &Path, word: &str) -> Result<Build, String> {
    let path = Path::new(word);
    if path.is_file() {
        let program = path.canonicalize().map_err(|error| format!("cannot find {word}: {error}"))?;
        let name = files::name_of(&program);
        return Ok(Build { program, name });
    }
    let revision = revision(root, word)?;
    let folder = Dist::new(root).target.join("pairs");
    let program = folder.join(&revision).join("fipseed");
    if !program.is_file() || !program.with_file_name(CALLS).is_file() {
        println!("bench pairs ... building fipseed of {revision}");
        build(root, &folder, &revision, &program)?;
    }
    Ok(Build { program, name: revision })
}

fn revision(root: &Path, word: &str) -> Result<String, String> {
    let commit = format!("{word}^{{commit}}");
    step::print(Command::new("git").current_dir(root).args(["rev-parse", "--verify", "--short=12", &commit]))
        .map_err(|text| format!("'{word}' is neither a program nor a git revision: {text}; name one or the other"))
}

/// Build from the files of the commit alone, beside whatever the work tree holds; dependencies are shared by all revisions.
fn build(root: &Path, folder: &Path, revision: &str, program: &Path) -> Result<(), String> {
    let (tree, archive, target) =
        (folder.join(revision).join("tree"), folder.join(revision).join("tree.tar"), folder.join("build"));
    files::make_folder(&tree)?;
    step::succeed(
        Command::new("git").current_dir(root).args(["archive", "--format=tar", "--output"]).arg(&archive).arg(revision),
    )?;
    // With the time of now: Cargo takes files that are older than the last build for unchanged, whatever revision that was of.
    step::succeed(Command::new("tar").args(["--touch", "-xf"]).arg(&archive).arg("-C").arg(&tree))?;
    let build = |what: &[&str], built: &str, program: &Path| {
        let mut command = cargo(&tree);
        command.args(["build", "--release", "--locked"]).args(what).arg("--target-dir").arg(&target);
        // As what ships, under whatever name a revision has that.
        command.env("CARGO_PROFILE_RELEASE_LTO", "thin").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
        step::succeed(&mut command)?;
        // Whole or not there: what is there is not built again.
        let copy = program.with_extension("part");
        files::copy(&target.join("release").join(built), &copy)?;
        files::rename(&copy, program)
    };
    build(&["--package", "fipsee-daemon"], "fipseed", program)?;
    // What drives calls is the same for every revision, over the revision's library. One that has no calls has no such example.
    let example = format!("crates/call/examples/{CALLS}.rs");
    if tree.join(&example).is_file() {
        files::copy(&root.join(&example), &tree.join(&example))?;
        let what = ["--package", "fipsee-call", "--example", CALLS];
        build(&what, &format!("examples/{CALLS}"), &program.with_file_name(CALLS))?;
    }
    step::succeed(Command::new("rm").arg("-r").args([&tree, &archive])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_taken_as_they_are_and_other_words_are_revisions() {
        let program = std::env::current_exe().expect("this test");
        let build = provide(&crate::root(), &program.to_string_lossy()).expect("a program");
        assert_eq!(build.program, program.canonicalize().expect("its path"));
        assert!(program.ends_with(&build.name));
        let error = provide(&crate::root(), "no-such-revision-here").err().expect("neither");
        assert!(error.contains("no-such-revision-here") && error.contains("git revision"), "{error}");
    }
}
