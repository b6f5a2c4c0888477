//! Third-party notices: the crates and the standard library that a binary contains, with their licences and the texts of these, from the
//! sources that cargo has compiled. A licence that is not allowed, or has no text, is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dist, licence};
use crate::files::{self, list, name_of, read_text};
use crate::{cargo, step};

/// The file of a binary's notices, beside our own licences.
pub(super) const FILE: &str = "THIRD-PARTY-NOTICES";
const OWN: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// How the files with licences of a crate begin, in lower case.
const LICENCE_FILES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// What is in a binary: where it comes from, and under which licence it is.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    name: String,
    version: String,
    licence: String,
    place: String,
}

/// Each text once, with what it belongs to: under its words, because files differ in spaces and line ends.
type Texts = BTreeMap<String, (String, BTreeSet<String>)>;

/// Put our licences and the notices of `package`, as cargo has built it together with `built`, into share/doc/NAME of the prefix.
pub(super) fn install(dist: &Dist, names: &[&str], package: &str, built: &[&str]) -> Result<(), String> {
    let text = notices(&dist.root, package, built)?;
    for name in names {
        let folder = dist.prefix.join("share/doc").join(name);
        files::write(&folder.join(FILE), &text)?;
        for licence in OWN {
            files::copy(&dist.root.join(licence), &folder.join(licence))?;
        }
    }
    Ok(())
}

fn notices(root: &Path, package: &str, built: &[&str]) -> Result<String, String> {
    let mut tree = cargo(root);
    // Quiet: else it may say that it waits for another cargo.
    tree.args(["tree", "--quiet", "--locked", "--edges", "normal,no-proc-macro", "--no-dedupe", "--prefix", "none"]);
    tree.args(["--format", "{p}|{l}|{r}"]);
    let tree = step::print(tree.args(built.iter().flat_map(|package| ["--package", package])))?;
    let parts = linked(&tree, package);
    if parts.is_empty() {
        return Err(format!("cargo tree names nothing that {package} is linked with"));
    }
    let refused: Vec<String> = parts
        .iter()
        .filter(|part| !licence::is_allowed(&part.licence))
        .map(|part| format!("{} {} has the licence '{}'", part.name, part.version, part.licence))
        .collect();
    if !refused.is_empty() {
        return Err(format!(
            "{}\nno allowed one (xtask/src/dist/licence.rs): do without the crate, or decide",
            refused.join("\n")
        ));
    }
    let metadata = step::print(cargo(root).args(["metadata", "--quiet", "--locked", "--format-version", "1"]))?;
    let mut texts = Texts::new();
    for part in &parts {
        add_texts_of_crate(part, &metadata, &mut texts)?;
    }
    let library = standard_library(&mut texts)?;
    Ok(page(package, &parts, &library, &texts))
}

/// The crates of others below `package` in what cargo tree says of several packages.
fn linked(tree: &str, package: &str) -> BTreeSet<Part> {
    let root = format!("{package} v");
    let section = tree.split("\n\n").find(|section| section.starts_with(&root)).unwrap_or_default();
    let part = |line: &str| {
        let [name, licence, place] = line.split('|').collect::<Vec<_>>().try_into().ok()?;
        let (name, version) = name.split_once(" v")?;
        // Those of this workspace are named with their folder.
        let is_own = version.contains(" (");
        (!is_own).then(|| Part {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.to_owned(),
            place: place.to_owned(),
        })
    };
    section.lines().filter_map(part).collect()
}

fn add_texts_of_crate(part: &Part, metadata: &str, texts: &mut Texts) -> Result<(), String> {
    let folder = folder_of(part, metadata).ok_or_else(|| format!("cargo does not know the sources of {}", part.name))?;
    let is_licence = |path: &PathBuf| {
        let name = name_of(path).to_lowercase();
        path.is_file() && LICENCE_FILES.iter().any(|beginning| name.starts_with(beginning))
    };
    let found: Vec<PathBuf> = list(&folder)?.into_iter().filter(is_licence).collect();
    if found.is_empty() {
        return Err(format!("{} {} comes without the text of its licence ({})", part.name, part.version, part.licence));
    }
    for path in found {
        add(texts, &read_text(&path)?, format!("{} {}", part.name, part.version));
    }
    Ok(())
}

/// Where the manifest is, as `cargo metadata` has it after name and version.
fn folder_of(part: &Part, metadata: &str) -> Option<PathBuf> {
    let (_, after) = metadata.split_once(&format!("{{\"name\":\"{}\",\"version\":\"{}\",\"id\":", part.name, part.version))?;
    let (_, after) = after.split_once("\"manifest_path\":\"")?;
    Some(Path::new(after.split('"').next()?).parent()?.to_owned())
}

fn add(texts: &mut Texts, text: &str, owner: String) {
    let words: Vec<&str> = text.split_whitespace().collect();
    let entry = texts.entry(words.join(" ")).or_insert_with(|| (text.trim_matches(['\n', '\r']).to_owned(), BTreeSet::new()));
    entry.1.insert(owner);
}

/// What the toolchain says of the standard library: its own licences, and the crates that it is built from on any system.
fn standard_library(texts: &mut Texts) -> Result<BTreeSet<Part>, String> {
    let rustc = || Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let documents = Path::new(&step::print(rustc().args(["--print", "sysroot"]))?).join("share/doc/rust");
    let version = step::print(rustc().arg("--version"))?;
    let page = read_text(&documents.join("COPYRIGHT-library.html"))?;
    for licence in ["Apache-2.0", "BSD-2-Clause", "MIT", "Unicode-3.0"] {
        add(texts, &read_text(&documents.join(format!("licenses/{licence}.txt")))?, "the standard library".to_owned());
    }
    let mut parts = BTreeSet::from([Part {
        name: "the standard library".to_owned(),
        version: version.split(' ').nth(1).unwrap_or_default().to_owned(),
        licence: "MIT OR Apache-2.0, parts also BSD-2-Clause, Unicode-3.0".to_owned(),
        place: "Copyright: The Rust Project Developers (see https://thanks.rust-lang.org)".to_owned(),
    }]);
    for section in page.split("<h3>").skip(1) {
        let title = section.split("</h3>").next().unwrap_or_default();
        let (name, version) = crate_and_version(title.trim_start_matches(|character: char| !character.is_ascii()).trim());
        let field = |name: &str| {
            let (_, after) = section.split_once(&format!("<b>{name}:</b>"))?;
            Some(plain(after.split("</p>").next()?).trim().to_owned())
        };
        for text in section.split("<pre>").skip(1).filter_map(|text| text.split("</pre>").next()) {
            add(texts, &plain(text), format!("{name} {version}"));
        }
        let licence = field("License").unwrap_or_default();
        parts.insert(Part { name, version, licence, place: field("Authors").unwrap_or_default() });
    }
    if parts.len() < 10 {
        return Err(format!("{}/COPYRIGHT-library.html is not as it was: no crates found", documents.display()));
    }
    Ok(parts)
}

/// `windows-sys-0.60.2` and `wasi-0.11.1+wasi-snapshot-preview1`.
fn crate_and_version(title: &str) -> (String, String) {
    let is_version = |index: &usize| title[index + 1..].starts_with(|character: char| character.is_ascii_digit());
    let dash = title.match_indices('-').map(|(index, _)| index).find(is_version);
    let (name, version) = dash.map_or((title, ""), |dash| (&title[..dash], &title[dash + 1..]));
    (name.to_owned(), version.to_owned())
}

/// Without what HTML has instead of characters.
fn plain(html: &str) -> String {
    [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(html.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn page(package: &str, parts: &BTreeSet<Part>, library: &BTreeSet<Part>, texts: &Texts) -> String {
    let mut page = format!("{package} contains the following libraries. The texts of their licences are below.\n\n");
    let row = |page: &mut String, part: &Part| {
        let _ = writeln!(page, "{} {}", part.name, part.version);
        for field in [&part.licence, &part.place].into_iter().filter(|field| !field.is_empty()) {
            let _ = writeln!(page, "    {field}");
        }
    };
    parts.iter().for_each(|part| row(&mut page, part));
    page.push_str("\nand Rust's standard library, which is built from these, some only on other systems:\n\n");
    library.iter().for_each(|part| row(&mut page, part));
    for (text, owners) in texts.values() {
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        let _ = write!(page, "\n{}\nof {}\n\n{text}\n", "=".repeat(80), owners.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_others_below_one_package_are_found_once() {
        let tree = "fipsee v0.1.0 (/a b)|MIT|\nclap v4.6.7|MIT OR Apache-2.0|place\nfipsee-ring v0.1.0 (/r)|MIT|\nclap v4.6.7|MIT OR Apache-2.0|place\n\n\
                    fipsee-daemon v0.1.0 (/d)|MIT|\ntoml v1.2.1|MIT|\n";
        let names =
            |package| linked(tree, package).into_iter().map(|part| format!("{} {}", part.name, part.version)).collect::<Vec<_>>();
        assert_eq!(names("fipsee"), ["clap 4.6.7"]);
        assert_eq!(names("fipsee-daemon"), ["toml 1.2.1"]);
        assert_eq!(names("fips"), [""; 0]);
    }

    #[test]
    fn sources_are_found_by_name_and_version() {
        let metadata = "{\"packages\":[{\"name\":\"a\",\"version\":\"1.0.0\",\"id\":\"x\",\"dependencies\":[{\"name\":\"b\"}],\"manifest_path\":\"/s/a-1/Cargo.toml\"},\
                        {\"name\":\"a\",\"version\":\"2.0.0\",\"id\":\"y\",\"manifest_path\":\"/s/a-2/Cargo.toml\"}]}";
        let part = |version: &str| Part { name: "a".to_owned(), version: version.to_owned(), ..Part::default() };
        assert_eq!(folder_of(&part("2.0.0"), metadata).as_deref(), Some(Path::new("/s/a-2")));
        assert_eq!(folder_of(&part("3.0.0"), metadata), None);
    }

    #[test]
    fn same_words_are_one_text() {
        let mut texts = Texts::new();
        add(&mut texts, "Copyright A\n\nPermission is", "a 1".to_owned());
        add(&mut texts, "Copyright A\r\nPermission   is\r\n", "b 1".to_owned());
        add(&mut texts, "Copyright B\n\nPermission is", "c 1".to_owned());
        assert_eq!(texts.len(), 2);
        let page = page("x", &BTreeSet::new(), &BTreeSet::new(), &texts);
        assert!(page.contains("of a 1, b 1\n\nCopyright A\n\nPermission is\n"), "{page}");
    }

    #[test]
    fn names_with_dashes_keep_them() {
        let split = |title| crate_and_version(title);
        assert_eq!(split("windows-sys-0.60.2"), ("windows-sys".to_owned(), "0.60.2".to_owned()));
        assert_eq!(split("wasi-0.11.1+wasi-snapshot-preview1"), ("wasi".to_owned(), "0.11.1+wasi-snapshot-preview1".to_owned()));
    }
}
