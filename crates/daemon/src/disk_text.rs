//! Descriptions of disks as text: as they come in requests, and as the configuration has them.

use std::path::{Path, PathBuf};

use fipsee_block::disk::DiskSpec;

/// Parse `NAME=KIND:ARGS`; a `path` given apart, which may have commas, replaces the one in it.
///
/// # Errors
/// What is wrong, and what to write.
pub fn parse(text: &str, path: Option<&Path>) -> Result<DiskSpec, String> {
    let Some(path) = path else { return DiskSpec::parse(text) };
    // An empty path in the text is no error then.
    let mut spec = DiskSpec::parse(&text.replacen("file:", "file:path", 1))?;
    let Some(options) = spec.kind.file_mut() else {
        return Err(format!("disk '{}': only a file disk has a path; remove it", spec.name));
    };
    path.clone_into(&mut options.path);
    Ok(spec)
}

/// `NAME=KIND:ARGS` that [`parse`] understands, with the path apart if it does not fit into it.
pub(crate) fn text_of(spec: &DiskSpec) -> (String, Option<PathBuf>) {
    let text = spec.to_string();
    if DiskSpec::parse(&text).as_ref() == Ok(spec) {
        return (text, None);
    }
    let mut without = spec.clone();
    let path = without.kind.file_mut().map(|options| std::mem::take(&mut options.path));
    (without.to_string(), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_do_not_fit_are_given_apart() {
        for (text, path) in [("a=file:,size=1M,ro", Some("/x,y")), ("a=file:/x,size=1M", None), ("a=delay:1ms:file:", Some("/,"))]
        {
            let spec = parse(text, path.map(Path::new)).expect(text);
            let (again, apart) = text_of(&spec);
            assert_eq!(apart.as_deref(), path.map(Path::new), "{again}");
            assert_eq!(parse(&again, apart.as_deref()), Ok(spec));
        }
        let text = parse("a=null:1G", Some(Path::new("/x"))).expect_err("no file");
        assert!(text.contains("only a file disk has a path"), "{text}");
    }
}
