//! The corpus of a target: one file, one input a line, in hexadecimal, so that a difference can be read.

use std::path::{Path, PathBuf};

/// The folder of the corpus of `target`.
pub fn path(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{target}.hex"))
}

/// The inputs in `text`.
pub fn unpack(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let unpack_line = |(index, line): (usize, &str)| {
        let digits = line.as_bytes().chunks(2).map(|pair| {
            let pair = str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        });
        digits.collect::<Option<Vec<u8>>>().ok_or_else(|| format!("line {} is not hexadecimal", index + 1))
    };
    text.lines().enumerate().map(unpack_line).collect()
}

/// Inputs as a text, shortest first.
pub fn pack(mut inputs: Vec<Vec<u8>>) -> String {
    inputs.sort_by_key(|input| (input.len(), input.clone()));
    inputs.dedup();
    let line = |input: &Vec<u8>| input.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    inputs.iter().filter(|input| !input.is_empty()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let inputs = vec![vec![0, 255, 16], vec![7], vec![7]];
        let text = pack(inputs);
        assert_eq!(text, "07\n00ff10\n");
        assert_eq!(unpack(&text), Ok(vec![vec![7], vec![0, 255, 16]]));
        assert_eq!(unpack("07\n0g\n"), Err("line 2 is not hexadecimal".to_owned()));
        assert!(unpack("123\n").is_err());
    }
}
