//! `fipseed` and `fipsee`.

use super::{Dist, debug, notices};

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    const PACKAGES: [&str; 2] = ["fipsee-daemon", "fipsee"];
    dist.cargo_build(&PACKAGES)?;
    for (program, package) in ["fipseed", "fipsee"].into_iter().zip(PACKAGES) {
        debug::split(dist, &dist.built(program), &dist.prefix.join("bin").join(program))?;
        notices::install(dist, &[package], package, &PACKAGES)?;
    }
    Ok(String::new())
}
