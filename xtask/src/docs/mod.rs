//! `cargo xtask docs`: every document and reference as one site with navigation and search, in target/docs. A link that leads
//! nowhere, or to an anchor that is not there, fails it. docs/decisions/0031 says why it is built this way.

mod c_api;
mod html;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::ci;
use crate::dist::{self, Dist};
use crate::setup::is_installed;
use crate::step::{self, Tally};
use crate::tidy::text::join;
use html::{Navigation, Page};

/// The navigation: groups with their documents, in order. A path that ends in `/` is each document of a folder.
const NAVIGATION: &str = include_str!("navigation.txt");

/// The crates whose interfaces others use.
const CRATES: [&str; 7] = ["ring", "block", "call", "net", "serve", "topology", "virtio"];

/// Documentation of the crates, then the site.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    tally.check("tier 1 documentation of the crates", || {
        step::succeed(ci::beside_tests(root).args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))
    });
    const NAME: &str = "tier 1 documentation site";
    match ["cmark-gfm", "mandoc", "python3"].into_iter().find(|program| !is_installed(program)) {
        Some(program) => tally.skip(NAME, &format!("{program} is not installed; run `cargo xtask setup` as root")),
        None => tally.check(NAME, || build(&Dist::new(root))),
    }
}

fn build(dist: &Dist) -> Result<String, String> {
    let mut site = Site { root: &dist.root, pages: BTreeMap::new(), files: BTreeSet::new() };
    let mut navigation = site.documents()?;
    navigation.push(("C".to_owned(), site.headers()?));
    let mut python = Command::new("python3");
    let python = output(python.current_dir(&dist.root).args(["xtask/src/docs/python_api.py", "crates/python"]))?;
    navigation.push(("Python".to_owned(), vec![site.add(Page::new("crates/python/fipsee.html", "fipsee", python))]));
    let crates = CRATES.map(|name| (format!("rust/fipsee_{name}/index.html"), format!("fipsee-{name}")));
    navigation.push(("Rust".to_owned(), crates.into()));
    navigation.push(("Programs".to_owned(), site.manual(&dist::manual(dist)?)?));
    let rust = dist.target.join("check/doc");
    let exists = |path: &str| {
        let in_rust = |path| rust.join(path).is_file();
        path.strip_prefix("rust/").map_or_else(|| site.files.contains(path), in_rust)
    };
    let listed = navigation.iter().flat_map(|(_, entries)| entries).filter(|(path, _)| !site.pages.contains_key(path));
    let mut errors: Vec<String> = listed
        .filter(|(path, _)| !exists(path))
        .map(|(path, _)| format!("the navigation leads to {path}, which is not there"))
        .collect();
    errors.extend(html::dead_links(&site.pages, &exists));
    if !errors.is_empty() {
        return Err(errors.join("\n"));
    }
    site.write(&dist.target.join("docs"), &navigation, &rust)?;
    Ok(format!("{} pages, target/docs/index.html", site.pages.len()))
}

/// What becomes the site: paths are those of the repository, Markdown's and sources' with `.html`.
struct Site<'a> {
    root: &'a Path,
    pages: BTreeMap<String, Page>,
    /// Pictures, copied as they are.
    files: BTreeSet<String>,
}

impl Site<'_> {
    fn add(&mut self, page: Page) -> (String, String) {
        let entry = (page.path.clone(), page.title.clone());
        self.pages.insert(page.path.clone(), page);
        entry
    }

    /// The documents of the navigation, and every file of the repository to which one of them links.
    fn documents(&mut self) -> Result<Navigation, String> {
        let mut navigation = Navigation::new();
        let mut linked = Vec::new();
        for (group, paths) in documents(self.root)? {
            let mut entries = Vec::new();
            for path in paths {
                let page = self.document(&path, &mut linked)?;
                entries.push(self.add(page));
            }
            navigation.push((group, entries));
        }
        while let Some(path) = linked.pop() {
            let target = target(self.root, &path);
            let is_picture = target == path;
            if self.pages.contains_key(&target) || path.starts_with("include/") || !self.root.join(&path).is_file() {
                continue;
            } else if is_picture {
                self.files.insert(path);
            } else if path.ends_with(".md") {
                let page = self.document(&path, &mut linked)?;
                self.add(page);
            } else {
                let body = format!("<h1>{path}</h1>\n<pre><code>{}</code></pre>\n", html::escape(&read(self.root, &path)?));
                self.add(Page::new(&target, &path, body));
            }
        }
        Ok(navigation)
    }

    /// A Markdown file as GitHub shows it; notes the files to which it links.
    fn document(&self, path: &str, linked: &mut Vec<String>) -> Result<Page, String> {
        let markdown = read(self.root, path)?;
        let title = markdown.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(path);
        let mut command = Command::new("cmark-gfm");
        command.args(["--unsafe", "--extension", "table", "--extension", "strikethrough"]).arg(self.root.join(path));
        let text = output(&mut command)?;
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let up = "../".repeat(path.matches('/').count());
        let body = html::map_links(&text, &mut |link| {
            let (file, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
            if file.is_empty() || html::is_elsewhere(link) {
                return link.to_owned();
            }
            let file = join(folder, file);
            let target = target(self.root, &file);
            linked.push(if self.root.join(&file).is_dir() { format!("{file}/README.md") } else { file });
            format!("{up}{target}{anchor}")
        });
        Ok(Page::new(&target(self.root, path), &title.replace('`', ""), body))
    }

    fn headers(&mut self) -> Result<Vec<(String, String)>, String> {
        let mut entries = Vec::new();
        for path in files_in(self.root, "include", ".h")? {
            let text = read(self.root, &path)?;
            let header = c_api::Header::parse(&text);
            entries.push(self.add(Page::new(&target(self.root, &path), &path["include/".len()..], header.body(&path))));
        }
        let link = |(path, title): &(String, String)| format!("<li><a href=\"../{path}\">{title}</a></li>\n");
        let list: String = entries.iter().map(link).collect();
        self.add(Page::new("include/index.html", "C headers", format!("<h1>C headers</h1>\n<ul>\n{list}</ul>\n")));
        Ok(entries)
    }

    /// What the programs write about themselves.
    fn manual(&mut self, folder: &Path) -> Result<Vec<(String, String)>, String> {
        let mut entries = Vec::new();
        for section in ["man8", "man1"] {
            for path in files_in(folder, section, "")? {
                let mut mandoc = Command::new("mandoc");
                let text = output(mandoc.args(["-T", "html", "-O", "fragment"]).arg(folder.join(&path)))?;
                let title = &path[section.len() + 1..];
                entries.push(self.add(Page::new(&format!("man/{title}.html"), title, text)));
            }
        }
        Ok(entries)
    }

    fn write(&self, site: &Path, navigation: &Navigation, rust: &Path) -> Result<(), String> {
        let _ = fs::remove_dir_all(site);
        let write = |path: &str, text: &[u8]| {
            let path = site.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, text)
        };
        let write = |path: &str, text: &[u8]| write(path, text).map_err(|error| format!("cannot write {path}: {error}"));
        for page in self.pages.values() {
            write(&page.path, html::whole(page, navigation).as_bytes())?;
        }
        for path in &self.files {
            write(path, &fs::read(self.root.join(path)).map_err(|error| format!("cannot read {path}: {error}"))?)?;
        }
        write("index.js", html::index(&self.pages).as_bytes())?;
        write("search.js", include_bytes!("search.js"))?;
        write("style.css", include_bytes!("style.css"))?;
        // Links instead of copies: nothing changes a file of rustdoc's in place.
        step::succeed(Command::new("cp").arg("-rl").arg(rust).arg(site.join("rust"))).map(drop)
    }
}

/// Where a file of the repository is in the site: pictures are copied, everything else becomes a page.
fn target(root: &Path, path: &str) -> String {
    match path {
        "README.md" => "index.html".to_owned(),
        _ if path.ends_with(".svg") || path.ends_with(".png") => path.to_owned(),
        _ if root.join(path).join("README.md").is_file() => format!("{path}/README.html"),
        _ if root.join(path).is_dir() => format!("{path}/index.html"),
        _ => format!("{}.html", path.strip_suffix(".md").unwrap_or(path)),
    }
}

/// The groups of documents; an error if one of docs/ is in none.
fn documents(root: &Path) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut groups = Vec::new();
    for group in NAVIGATION.split("\n\n") {
        let mut lines = group.lines();
        let name = lines.next().unwrap_or_default().to_owned();
        let mut all = Vec::new();
        for path in lines {
            match path.strip_suffix('/') {
                Some(folder) => all.extend(files_in(root, folder, ".md")?),
                None => all.push(path.to_owned()),
            }
        }
        groups.push((name, all));
    }
    let is_listed = |path: &String| groups.iter().any(|(_, paths)| paths.contains(path));
    for folder in ["docs", "docs/guide", "docs/decisions"] {
        if let Some(path) = files_in(root, folder, ".md")?.into_iter().find(|path| !is_listed(path)) {
            return Err(format!("{path} is in no group of the navigation: put it into one in xtask/src/docs/navigation.txt"));
        }
    }
    Ok(groups)
}

/// The files of a folder whose name ends like this, in order, with the folder.
fn files_in(root: &Path, folder: &str, ending: &str) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(root.join(folder)).map_err(|error| format!("cannot read {folder}: {error}"))?;
    let paths = entries.flatten().filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = paths.map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy())).collect();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    Ok(names)
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String, String> {
    let output = step::output(command);
    if output.succeeded { Ok(output.text) } else { Err(format!("{command:?}\n{}", output.text)) }
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("cannot read {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_in_the_navigation_once() {
        let groups = documents(&crate::root()).expect("each document of docs/ is in a group");
        let all: Vec<&String> = groups.iter().flat_map(|(_, paths)| paths).collect();
        assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len());
        assert!(all.len() > 50 && all.iter().all(|path| crate::root().join(path).is_file()), "{all:?}");
    }

    #[test]
    fn every_crate_is_in_the_rust_reference_or_has_one_of_its_own() {
        // Programs have manual pages; the libraries for C and Python their own references.
        const OTHERS: [&str; 4] = ["capi", "cli", "daemon", "python"];
        let entries = fs::read_dir(crate::root().join("crates")).expect("the crates");
        let is_crate = |entry: &fs::DirEntry| entry.path().join("Cargo.toml").is_file();
        let crates: BTreeSet<String> =
            entries.flatten().filter(is_crate).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(crates, CRATES.iter().chain(&OTHERS).map(|name| (*name).to_owned()).collect());
    }

    #[test]
    fn every_symbol_of_the_c_library_is_in_its_reference() {
        let headers = ["include/fipsee_client.h", "include/fipsee_doorbells.h", "include/fipsee_port.h"];
        let texts = headers.map(|path| read(&crate::root(), path).expect("a header"));
        let headers: Vec<_> = headers.into_iter().zip(texts.iter().map(|text| c_api::Header::parse(text))).collect();
        let abi = read(&crate::root(), "crates/capi/abi/abi.txt").expect("what the library promises");
        let promised = |kind: &str, name: fn(&str) -> Option<&str>| -> BTreeSet<String> {
            let lines = abi.lines().filter_map(|line| line.strip_prefix(kind));
            lines.filter_map(name).map(str::to_owned).collect()
        };
        let functions = promised("function ", |line| line.split('(').next()?.rsplit([' ', '*']).next());
        let constants = promised("constant ", |line| line.split(' ').next());
        let declared: BTreeSet<String> =
            headers.iter().flat_map(|(_, header)| header.functions.iter().map(ToString::to_string)).collect();
        assert!(functions.len() > 70 && declared == functions, "{declared:?}\n{functions:?}");
        let body: String = headers.iter().map(|(path, header)| header.body(path)).collect();
        for name in functions.iter().chain(&constants) {
            assert!(body.contains(&format!("id=\"{name}\"")), "{name}");
        }
    }

    #[test]
    fn every_inline_function_of_the_headers_is_in_the_reference() {
        for path in files_in(&crate::root(), "include", ".h").expect("headers") {
            let text = read(&crate::root(), &path).expect("a header");
            let starts = text.lines().filter(|line| line.starts_with("static inline")).count();
            assert_eq!(c_api::Header::parse(&text).inline_functions.len(), starts, "{path}");
        }
    }
}
