//! `fipseed` and `fipsee`.

use super::Dist;
use crate::{cargo, step};

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    step::succeed(cargo(&dist.root).args(["build", "--release", "--package", "fipsee-daemon", "--package", "fipsee"]))?;
    for program in ["fipseed", "fipsee"] {
        dist.install(&dist.target.join("release").join(program), &format!("bin/{program}"))?;
    }
    Ok(String::new())
}
