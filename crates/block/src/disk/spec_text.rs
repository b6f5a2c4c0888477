//! Specifications as text: what [`DiskSpec::parse`] parses to the same disk, unless a path has a comma. `read_only` of the options
//! is set when a disk is opened, from `ro`.

use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

use super::faults::{OPERATIONS, errno_name};
use super::wrap::{DelayOptions, ErrorOptions, PowerCutOptions};
use super::{DirectMode, DiskSpec, FileOptions, KindSpec, MemoryOptions, NullOptions, Wrapper};

impl Display for DiskSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}={}", self.name, self.kind)?;
        let flags = [("ro", self.ro), ("exclusive", self.exclusive), ("shared", self.shared)];
        flags.iter().filter(|(_, is_set)| *is_set).try_for_each(|(name, _)| write!(f, ",{name}"))
    }
}

impl Display for KindSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Null(NullOptions { size_bytes, block_bytes, read_only: _ }) => {
                write!(f, "null:{size_bytes}")?;
                option(f, "block", block_bytes.as_ref())
            }
            Self::Memory(MemoryOptions { size_bytes, max_bytes, block_bytes, huge, thp, lock, overcommit, read_only: _ }) => {
                write!(f, "memory:{size_bytes}")?;
                option(f, "max", max_bytes.as_ref())?;
                option(f, "block", block_bytes.as_ref())?;
                let flags = [("huge", huge), ("thp", thp), ("lock", lock), ("overcommit", overcommit)];
                flags.iter().filter(|(_, is_set)| **is_set).try_for_each(|(name, _)| write!(f, ",{name}"))
            }
            Self::File(FileOptions { path, size_bytes, block_bytes, direct, read_only: _ }) => {
                write!(f, "file:{}", path.display())?;
                option(f, "size", size_bytes.as_ref())?;
                option(f, "block", block_bytes.as_ref())?;
                match direct {
                    DirectMode::Auto => Ok(()),
                    DirectMode::On => f.write_str(",direct=on"),
                    DirectMode::Off => f.write_str(",direct=off"),
                }
            }
            Self::Wrapped(wrapper, below) => write!(f, "{wrapper}:{below}"),
        }
    }
}

fn option(f: &mut Formatter<'_>, key: &str, value: Option<&impl Display>) -> Result {
    value.map_or(Ok(()), |value| write!(f, ",{key}={value}"))
}

impl Display for Wrapper {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Delay(DelayOptions { fixed, random, seed }) => {
                let us = Duration::as_micros;
                write!(f, "delay:{}us+{}us,seed={seed}", us(fixed), us(random))
            }
            Self::Error(ErrorOptions { every, after, operations, sectors, errno }) => {
                write!(f, "error:every={every},after={after},errno={}", errno_name(*errno))?;
                for (index, operation) in operations.iter().enumerate() {
                    let name = OPERATIONS.iter().find(|(_, known)| known == operation).map_or("", |(name, _)| name);
                    write!(f, "{}{name}", if index == 0 { ",op=" } else { "+" })?;
                }
                sectors.map_or(Ok(()), |(first, last)| write!(f, ",sectors={first}-{last}"))
            }
            Self::PowerCut(PowerCutOptions { survive_percent, seed, cache_bytes, cut }) => {
                write!(f, "powercut:survive={survive_percent},seed={seed},cache={cache_bytes}")?;
                option(f, "cut", cut.as_ref())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_disk_is_parsed_to_the_same_disk() {
        for text in [
            "a=null:1G",
            "a=null:1G,block=4096,ro,exclusive",
            "a=null:1G,block=4096,ro,shared",
            "a=memory:256M,max=1G,block=512,thp,lock",
            "a=memory:256M,huge,overcommit",
            "a=file:/x/y:z=1,size=512M,block=4096,direct=on",
            "a=file:x,direct=off,ro",
            "a=delay:5ms+2us,seed=9:null:1G,ro",
            "a=error:every=3,after=4,op=read+write-zeroes,sectors=5-6,errno=ENOSPC:memory:1M",
            "a=error:null:1M",
            "a=powercut:survive=50,seed=7,cache=1M,cut=8:delay:1s:file:PATH,size=1M,shared",
        ] {
            let spec = DiskSpec::parse(text).expect(text);
            assert_eq!(DiskSpec::parse(&spec.to_string()), Ok(spec), "{text}");
        }
    }
}
