//! `fipseed` and `fipsee`.

use super::Dist;

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    dist.cargo_build(&["fipsee-daemon", "fipsee"])?;
    for program in ["fipseed", "fipsee"] {
        dist.install(&dist.built(program), &format!("bin/{program}"))?;
    }
    Ok(String::new())
}
