//! The elements of a libvirt domain.

use std::fmt::Write as _;

use super::{Arguments, Device};
use crate::error::Error;

/// The letter of the first disk's name in the machine.
pub(super) fn parse_target(text: &str) -> Result<char, String> {
    let letter = text.strip_prefix("vd").and_then(|rest| rest.parse().ok()).filter(char::is_ascii_lowercase);
    letter.ok_or_else(|| "write vda to vdz".to_owned())
}

pub(super) fn xml(arguments: &Arguments, devices: &[Device]) -> Result<String, Error> {
    let mut text = String::new();
    if !arguments.device_only {
        let _ = write!(
            text,
            "<!-- in <domain> -->\n\
             <memory unit='MiB'>{}</memory>\n\
             <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n\
             <!-- in <devices> -->\n",
            arguments.memory
        );
    }
    let (queues, mut targets) = (arguments.queues, arguments.target..='z');
    let size = arguments.queue_size.map_or_else(String::new, |size| format!(" queue_size='{size}'"));
    for Device { disk, socket } in devices {
        let Some(target) = targets.next() else {
            return Err(format!("there is no name after vdz for disk '{disk}'; choose an earlier --target").into());
        };
        let _ = write!(
            text,
            "<disk type='vhostuser' device='disk'>\n  \
             <driver name='qemu' type='raw' queues='{queues}'{size}/>\n  \
             <source type='unix' path='{}'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
             <target dev='vd{target}' bus='virtio'/>\n</disk>\n",
            escape(socket)
        );
    }
    Ok(text)
}

/// Text within an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '\'' => escaped.push_str("&apos;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_names_of_virtio_disks() {
        assert_eq!(parse_target("vdc"), Ok('c'));
        for text in ["vd", "vdaa", "sda", "vdA", ""] {
            assert!(parse_target(text).expect_err(text).contains("vda to vdz"));
        }
    }

    #[test]
    fn a_path_cannot_end_its_attribute() {
        assert_eq!(escape("/a'b<c&d>\""), "/a&apos;b&lt;c&amp;d>\"");
    }
}
