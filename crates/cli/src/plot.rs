//! Pictures in files: SVG as drawn, or PNG made from it.

use std::path::Path;
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query};
use resvg::usvg::{Options, Tree};

use crate::error::Error;

/// Pixels of a PNG per unit of the drawing: sharp on current screens.
const PNG_SCALE: f32 = 2.0;
/// Longest side of a PNG, in pixels: a square of this size takes 1 GiB to draw.
const MAX_SIDE_PIXELS: u32 = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Svg,
    Png,
}

/// Check that `path` names a format that can be written: before a measurement that could not be saved.
///
/// # Errors
/// It does not end in .svg or .png.
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    format_of(path).map(|_| ())
}

/// Write the picture `svg` to `path`, as SVG or PNG by its ending.
///
/// # Errors
/// Another ending; no font for a PNG; the file cannot be written.
pub(crate) fn write(path: &Path, svg: &str) -> Result<(), Error> {
    let bytes = match format_of(path)? {
        Format::Svg => svg.as_bytes().to_vec(),
        Format::Png => to_png(svg).map_err(|reason| Error::at(path.display(), reason))?,
    };
    std::fs::write(path, bytes).map_err(|error| Error::io(format_args!("write {}", path.display()), &error))
}

fn format_of(path: &Path) -> Result<Format, Error> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    match ending.as_deref() {
        Some("svg") => Ok(Format::Svg),
        Some("png") => Ok(Format::Png),
        _ => Err(Error::at(path.display(), "a picture is SVG or PNG; let the name end in .svg or .png")),
    }
}

fn to_png(svg: &str) -> Result<Vec<u8>, String> {
    let drawing = |problem: &dyn std::fmt::Display| format!("cannot draw it as PNG: {problem}; write .svg instead");
    let options = Options { fontdb: Arc::new(fonts()?), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| drawing(&error))?;
    let size = tree.size().to_int_size().scale_by(PNG_SCALE);
    let size = size.filter(|size| size.width().max(size.height()) <= MAX_SIDE_PIXELS);
    let pixmap = size.and_then(|size| Pixmap::new(size.width(), size.height()));
    let mut pixmap = pixmap.ok_or_else(|| drawing(&"it is too large"))?;
    resvg::render(&tree, Transform::from_scale(PNG_SCALE, PNG_SCALE), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|error| drawing(&error))
}

/// The fonts of the system. The families that the drawing names may be missing; another installed family then replaces them.
fn fonts() -> Result<Database, String> {
    let mut fonts = Database::new();
    fonts.load_system_fonts();
    let first = fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
    let first =
        first.ok_or("a PNG needs a font and none is installed; write .svg, or install one (Debian: fonts-dejavu-core)")?;
    let has = |family| fonts.query(&Query { families: &[family], ..Query::default() }).is_some();
    let (has_sans, has_serif) = (has(Family::SansSerif), has(Family::Serif));
    if !has_sans {
        fonts.set_sans_serif_family(first.clone());
    }
    if !has_serif {
        fonts.set_serif_family(first);
    }
    Ok(fonts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: &str = "<svg width=\"40\" height=\"30\" xmlns=\"http://www.w3.org/2000/svg\">\
        <rect width=\"40\" height=\"30\" fill=\"#ff0000\"/></svg>";

    #[test]
    fn the_ending_chooses_the_format_and_others_are_refused_before_anything_is_written() {
        for name in ["a.svg", "b.SVG", "x/a.png"] {
            assert!(check(Path::new(name)).is_ok(), "{name}");
        }
        for name in ["a", "a.jpg", "a.svg.gz", ".svg"] {
            let error = check(Path::new(name)).expect_err(name).to_string();
            assert!(error.starts_with(name) && error.ends_with("let the name end in .svg or .png"), "{error}");
            assert!(write(Path::new(name), PICTURE).is_err());
            assert!(!Path::new(name).exists());
        }
    }

    #[test]
    fn a_png_has_two_pixels_for_each_unit_and_the_drawings_colour() {
        if fonts().is_err() {
            eprintln!("fipsee-skip: PNG of a plot: no font is installed");
            return;
        }
        let png = to_png(PICTURE).expect("a PNG");
        let pixmap = Pixmap::decode_png(&png).expect("what was encoded");
        assert_eq!((pixmap.width(), pixmap.height()), (80, 60));
        let middle = pixmap.pixel(40, 30).expect("a pixel of the middle");
        assert_eq!((middle.red(), middle.green(), middle.blue()), (255, 0, 0));
    }

    #[test]
    fn words_are_drawn_whatever_family_is_asked_for() {
        if fonts().is_err() {
            eprintln!("fipsee-skip: words in the PNG of a plot: no font is installed");
            return;
        }
        let svg = "<svg width=\"60\" height=\"20\" xmlns=\"http://www.w3.org/2000/svg\">\
            <text x=\"2\" y=\"16\" font-family=\"No Such Family\" font-size=\"16\">HHH</text></svg>";
        let pixmap = Pixmap::decode_png(&to_png(svg).expect("a PNG")).expect("what was encoded");
        assert!(pixmap.pixels().iter().any(|pixel| pixel.alpha() > 128), "nothing was drawn");
    }

    #[test]
    fn what_is_no_picture_or_too_large_is_refused() {
        if fonts().is_err() {
            return;
        }
        for (svg, part) in [("<svg", "cannot draw"), (&*PICTURE.replace("40", "400000"), "too large")] {
            let error = to_png(svg).expect_err(svg);
            assert!(error.contains(part) && error.ends_with("write .svg instead"), "{error}");
        }
    }
}
