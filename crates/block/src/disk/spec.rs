//! Specifications of disks on the command line: `NAME=KIND:ARGS`.
//!
//! ```text
//! a=null:1G
//! b=memory:256M,max=1G,thp,overcommit
//! c=file:PATH,size=512M,ro
//! d=powercut:survive=50,seed=7:file:PATH
//! ```
//! ARGS is the size or path up to the first comma, then options, separated by commas. A path may hold `:` and `=`. A
//! path with a comma cannot be written this way: use the configuration file, which fills in a [`DiskSpec`] itself.
//! The last form wraps a disk ([`wrap`](super::wrap)).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fipsee_ring::control::MAX_NAME_BYTES;

use super::{AnyDisk, DirectMode, FileDisk, FileOptions, MemoryDisk, MemoryOptions, NullDisk, NullOptions, WrappedDisk, Wrapper};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindSpec {
    /// `null:SIZE`
    Null(NullOptions),
    /// `memory:SIZE`
    Memory(MemoryOptions),
    /// `file:PATH`
    File(FileOptions),
    /// `delay:`, `error:`, `powercut:` and the disk below.
    Wrapped(Wrapper, Box<Self>),
}

impl KindSpec {
    pub fn file_mut(&mut self) -> Option<&mut FileOptions> {
        match self {
            Self::File(options) => Some(options),
            Self::Wrapped(_, below) => below.file_mut(),
            Self::Null(_) | Self::Memory(_) => None,
        }
    }

    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(options) => Some(&options.path),
            Self::Wrapped(_, below) => below.file(),
            Self::Null(_) | Self::Memory(_) => None,
        }
    }

    /// As it is after a resize; a memory disk can grow as far as before.
    pub fn set_size(&mut self, bytes: u64) {
        match self {
            Self::Null(options) => options.size_bytes = bytes,
            Self::Memory(options) => {
                if bytes < options.size_bytes {
                    options.max_bytes.get_or_insert(options.size_bytes);
                }
                options.size_bytes = bytes;
            }
            Self::File(options) => options.size_bytes = options.size_bytes.map(|_| bytes),
            Self::Wrapped(_, below) => below.set_size(bytes),
        }
    }

    pub fn name_and_size(&self) -> (&'static str, Option<u64>) {
        match self {
            Self::Null(options) => ("null", Some(options.size_bytes)),
            Self::Memory(options) => ("memory", Some(options.size_bytes)),
            Self::File(options) => ("file", options.size_bytes),
            Self::Wrapped(_, below) => ("wrapped", below.name_and_size().1),
        }
    }

    /// Parse `KIND:ARGS` up to the first comma of ARGS; returns what follows, piece by piece.
    fn parse(text: &str) -> Result<(Self, Vec<&str>), String> {
        let (kind, arguments) = text.split_once(':').unwrap_or((text, ""));
        // `powercut:file:x`: no options.
        let is_kind = |name: &str| ["null", "memory", "file"].contains(&name) || Wrapper::parse(name, "").is_some();
        let first = arguments.split(':').next().unwrap_or_default();
        let (options, below) =
            if is_kind(first) { ("", arguments) } else { arguments.split_once(':').unwrap_or((arguments, "")) };
        if let Some(wrapper) = Wrapper::parse(kind, options) {
            let wrapper = wrapper?;
            if below.is_empty() {
                return Err(format!("{kind}: the disk below is missing; write {kind}:OPTIONS:KIND:ARGS"));
            }
            let (below, pieces) = Self::parse(below)?;
            return Ok((Self::Wrapped(wrapper, Box::new(below)), pieces));
        }
        let mut pieces = arguments.split(',');
        let first = pieces.next().unwrap_or_default();
        let parsed = match kind {
            "null" => Self::Null(NullOptions { size_bytes: size_argument(kind, first)?, ..Default::default() }),
            "memory" => Self::Memory(MemoryOptions { size_bytes: size_argument(kind, first)?, ..Default::default() }),
            "file" if first.is_empty() => return Err("the path is missing; write file:PATH".into()),
            "file" => Self::File(FileOptions { path: PathBuf::from(first), ..Default::default() }),
            "" => return Err("the kind is missing; write KIND:ARGS, for example memory:256M".into()),
            _ => {
                let advice = "use null, memory or file, or delay:, error: or powercut: before one of them";
                return Err(format!("unknown kind '{kind}'; {advice}"));
            }
        };
        Ok((parsed, pieces.collect()))
    }

    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        match (self, key) {
            (Self::Wrapped(_, below), _) => below.set(key, value)?,
            (Self::Null(options), "block") => options.block_bytes = Some(block_of(value)?),
            (Self::Memory(options), "block") => options.block_bytes = Some(block_of(value)?),
            (Self::Memory(options), "max") => options.max_bytes = Some(size_option(key, value)?),
            (Self::Memory(options), "huge") => flag(&mut options.huge, key, value)?,
            (Self::Memory(options), "thp") => flag(&mut options.thp, key, value)?,
            (Self::Memory(options), "lock") => flag(&mut options.lock, key, value)?,
            (Self::Memory(options), "overcommit") => flag(&mut options.overcommit, key, value)?,
            (Self::File(options), "block") => options.block_bytes = Some(block_of(value)?),
            (Self::File(options), "size") => options.size_bytes = Some(size_option(key, value)?),
            (Self::File(options), "direct") => options.direct = direct_of(value)?,
            (kind, _) => {
                let known = match kind {
                    Self::Null(_) => "a null disk takes block=, ro, exclusive and shared",
                    Self::Memory(_) => "a memory disk takes max=, block=, huge, thp, lock, overcommit, ro, exclusive and shared",
                    _ => {
                        "a file disk takes size=, block=, direct=, ro, exclusive and shared (a path with a comma needs the configuration file)"
                    }
                };
                return Err(format!("unknown option '{key}'; {known}"));
            }
        }
        Ok(())
    }

    /// `passed`: the file, opened by another process.
    fn open(&self, name: &str, ro: bool, passed: Option<OwnedFd>) -> Result<AnyDisk, String> {
        match self {
            Self::Null(options) => {
                NullDisk::new(name, &NullOptions { read_only: options.read_only || ro, ..options.clone() }).map(AnyDisk::Null)
            }
            Self::Memory(options) => {
                MemoryDisk::new(&MemoryOptions { read_only: options.read_only || ro, ..options.clone() }).map(AnyDisk::Memory)
            }
            Self::File(options) => {
                let options = FileOptions { read_only: options.read_only || ro, ..options.clone() };
                let opened = match passed {
                    Some(file) => FileDisk::open_passed(&options, file),
                    None => FileDisk::open(&options),
                };
                opened.map(AnyDisk::File)
            }
            Self::Wrapped(wrapper, below) => WrappedDisk::new(below.open(name, ro, passed)?, wrapper).map(AnyDisk::Wrapped),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// Its name for clients: 1 to 64 letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its options. `open` sets its `read_only` from [`ro`](Self::ro).
    pub kind: KindSpec,
    pub ro: bool,
    pub exclusive: bool,
    /// Several clients may write at a time, whatever they claim.
    pub shared: bool,
}

impl DiskSpec {
    /// Parse `NAME=KIND:ARGS`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=') else {
            return Err(format!("disk '{text}': there is no '='; write NAME=KIND:ARGS, for example a=memory:256M"));
        };
        Self::parse_named(name, rest).map_err(|problem| format!("disk '{name}': {problem}"))
    }

    fn parse_named(name: &str, rest: &str) -> Result<Self, String> {
        check_name(name)?;
        let (kind, pieces) = KindSpec::parse(rest)?;
        let mut spec = Self { name: name.into(), kind, ro: false, exclusive: false, shared: false };
        let mut seen = Vec::new();
        for piece in pieces {
            let (key, value) = piece.split_once('=').map_or((piece, None), |(key, value)| (key, Some(value)));
            if seen.contains(&key) {
                return Err(format!("option '{key}' is given twice; give it once"));
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        spec.check_sharing()?;
        Ok(spec)
    }

    /// # Errors
    /// It is for one client and for several.
    pub fn check_sharing(&self) -> Result<(), String> {
        match self.exclusive && self.shared {
            true => Err("exclusive and shared contradict each other; remove one of them".to_owned()),
            false => Ok(()),
        }
    }

    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        match key {
            "ro" => flag(&mut self.ro, key, value),
            "exclusive" => flag(&mut self.exclusive, key, value),
            "shared" => flag(&mut self.shared, key, value),
            _ => self.kind.set(key, value),
        }
    }

    /// Create or open the disk.
    ///
    /// # Errors
    /// The reason, beginning with the disk's name, in words that say what to do.
    pub fn open(&self) -> Result<AnyDisk, String> {
        self.open_file(None)
    }

    /// As [`open`](Self::open), with the file that another process has opened: this one may not be able to reach its path.
    pub fn open_passed(&self, file: OwnedFd) -> Result<AnyDisk, String> {
        self.open_file(Some(file))
    }

    fn open_file(&self, passed: Option<OwnedFd>) -> Result<AnyDisk, String> {
        let opened = check_name(&self.name).and_then(|()| self.kind.open(&self.name, self.ro, passed));
        opened.map_err(|problem| format!("disk '{}': {problem}", self.name))
    }
}

/// Is this a name that a disk can have?
pub fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_allowed) {
        return Err(format!("this name is not possible; use 1 to {MAX_NAME_BYTES} letters, digits, '-', '_' and '.'"));
    }
    Ok(())
}

fn flag(target: &mut bool, key: &str, value: Option<&str>) -> Result<(), String> {
    *target = true;
    value.map_or(Ok(()), |value| Err(format!("option '{key}' takes no value; write {key}, not {key}={value}, or leave it out")))
}

fn size_argument(kind: &str, text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Err(format!("the size is missing; write {kind}:SIZE, for example {kind}:256M"));
    }
    parse_size(text)
}

fn size_option(key: &str, value: Option<&str>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("option '{key}' needs a value; write {key}=SIZE, for example {key}=1G"))?;
    parse_size(value).map_err(|problem| format!("{key}: {problem}"))
}

fn block_of(value: Option<&str>) -> Result<u32, String> {
    match value.map(parse_size) {
        Some(Ok(512)) => Ok(512),
        Some(Ok(4096)) => Ok(4096),
        _ => Err(format!("the block size '{}' is not possible; use block=512 or block=4096", value.unwrap_or_default())),
    }
}

fn direct_of(value: Option<&str>) -> Result<DirectMode, String> {
    match value {
        Some("auto") => Ok(DirectMode::Auto),
        Some("on") => Ok(DirectMode::On),
        Some("off") => Ok(DirectMode::Off),
        _ => Err(format!("direct={} is not possible; use direct=auto, direct=on or direct=off", value.unwrap_or_default())),
    }
}

/// A size in bytes: an integer, alone or with K, M, G or T (or KiB, MiB, GiB, TiB), which are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        "t" | "tib" => Some(40),
        _ => None,
    };
    let (Some(shift), false) = (shift, number.is_empty()) else {
        return Err(format!("'{text}' is not a size; write an integer, alone (bytes) or with K, M, G or T (powers of 1024)"));
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("the size '{text}' does not fit 64 bits; give a smaller one"))
}
