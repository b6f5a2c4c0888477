//! What the guest's processors did to devices, from QEMU's trace of accesses to memory regions. With hardware virtualization each such access
//! is an exit. Doorbells are not in this trace: QEMU writes their eventfds instead. The guest counts them, and halts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::back_end::ask_monitor;

/// The local interrupt controller of a processor, the page at 0xfee00000.
const APIC: &str = "apic-msi";
/// Port 0x80, which has no device: the guest writes a letter there when a load begins and when it has ended.
const MARKS: &str = "ioport80";
const BEGIN: u64 = b'b' as u64;
const END: u64 = b'e' as u64;

/// The trace of a machine, on while something is watched: it is long.
pub(super) struct Trace {
    monitor: PathBuf,
    /// Where QEMU writes it.
    log: PathBuf,
    /// What was there before.
    skipped: usize,
}

impl Trace {
    pub(super) fn new(monitor: PathBuf, log: PathBuf) -> Self {
        Self { monitor, log, skipped: 0 }
    }

    pub(super) fn begin(&mut self) -> Result<(), String> {
        self.skipped = read(&self.log)?.len();
        self.switch(true)
    }

    /// `CAUSE=COUNT...`, if the guest made its marks meanwhile.
    pub(super) fn end(&self) -> Result<Option<String>, String> {
        self.switch(false)?;
        let log = read(&self.log)?;
        Ok(count(log.get(self.skipped..).unwrap_or_default()))
    }

    fn switch(&self, on: bool) -> Result<(), String> {
        let arguments = format!(r#"{{"name":"memory_region_ops_*","enable":{on}}}"#);
        ask_monitor(&self.monitor, &format!(r#"{{"execute":"trace-event-set-state","arguments":{arguments}}}"#), None)
    }
}

fn read(log: &Path) -> Result<String, String> {
    fs::read_to_string(log).map_err(|error| format!("cannot read {}: {error}", log.display()))
}

/// Between the marks.
fn count(log: &str) -> Option<String> {
    let accesses = log.lines().filter_map(Access::of);
    let begun = accesses.skip_while(|access| !access.marks(BEGIN)).skip(1);
    let mut counts = BTreeMap::from(["ends_of_interrupt", "ipis", "timer", "controller", "devices"].map(|cause| (cause, 0_u64)));
    for access in begun {
        if access.marks(END) {
            return Some(counts.iter().map(|(cause, count)| format!(" {cause}={count}")).collect());
        }
        if access.is_by_processor {
            *counts.entry(access.cause()).or_default() += 1;
        }
    }
    None
}

/// A line of the trace: `memory_region_ops_write cpu 0 mr 0x55d6 addr 0xfee000b0 value 0x0 size 4 name 'apic-msi'`.
struct Access<'a> {
    /// Not by a device, as an interrupt by a message is.
    is_by_processor: bool,
    address: u64,
    value: u64,
    region: &'a str,
}

impl<'a> Access<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (_, event) = line.split_once("memory_region_ops_")?;
        let (fields, region) = event.split_once(" name '")?;
        let words: Vec<&str> = fields.split(' ').collect();
        let field = |name| words.iter().position(|word| *word == name).and_then(|place| words.get(place + 1)).copied();
        let number = |name| u64::from_str_radix(field(name)?.strip_prefix("0x")?, 16).ok();
        Some(Self {
            is_by_processor: !field("cpu")?.starts_with('-'),
            address: number("addr")?,
            value: number("value")?,
            region: region.strip_suffix('\'')?,
        })
    }

    fn marks(&self, letter: u64) -> bool {
        self.region == MARKS && self.value == letter
    }

    /// By the register map of the local APIC (Intel SDM, volume 3, chapter 'Advanced Programmable Interrupt Controller (APIC)').
    fn cause(&self) -> &'static str {
        match (self.region, self.address & 0xfff) {
            (APIC, 0xb0) => "ends_of_interrupt",
            (APIC, 0x300 | 0x310) => "ipis",
            (APIC, 0x320 | 0x380 | 0x390 | 0x3e0) => "timer",
            (APIC, _) => "controller",
            _ => "devices",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_processors_between_the_marks_are_counted_by_cause() {
        let line = |cpu: i32, address: u64, value: u64, name: &str| {
            format!("memory_region_ops_write cpu {cpu} mr 0x55d6c0 addr {address:#x} value {value:#x} size 4 name '{name}'\n")
        };
        let load: String = [
            line(0, 0xfee0_00b0, 0, "apic-msi"),
            line(1, 0xfee0_00b0, 0, "apic-msi"),
            line(0, 0xfee0_0300, 0xfd, "apic-msi"),
            line(0, 0xfee0_0380, 9, "apic-msi"),
            line(0, 0xfee0_0020, 9, "apic-msi"),
            "memory_region_ops_read cpu 0 mr 0x1 addr 0x608 value 0x7 size 4 name 'acpi-tmr'\n".to_owned(),
            line(-1, 0xfee0_1004, 0x25, "apic-msi"),
            line(0, 0x80, 0, "ioport80"),
        ]
        .concat();
        let [begin, end] = [BEGIN, END].map(|letter| line(0, 0x80, letter, "ioport80"));
        let log = format!("a message\n{load}{begin}{load}{end}{load}");
        let counts = count(&log).expect("both marks are there");
        assert_eq!(counts, " controller=1 devices=2 ends_of_interrupt=2 ipis=1 timer=1");
        assert_eq!(count(&format!("{begin}{load}")), None, "the load has not ended");
        assert_eq!(count(&load), None, "no load");
    }
}
