//! Numbers of users and groups that a configuration names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::unistd::{Group, User};

/// Where local users and groups are; the number is the third field of each.
pub(crate) const FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// Set once this process is confined: a module of the C library (sssd, LDAP) may then need system calls that would end it.
static FILES_ONLY: AtomicBool = AtomicBool::new(false);

pub(crate) fn use_files_only() {
    FILES_ONLY.store(true, Ordering::Relaxed);
}

/// The number of a user of this name, or of this number.
///
/// # Errors
/// In words: there is no such user, or it cannot be looked up.
pub fn user_number(text: &str) -> Result<u32, String> {
    Names::default().number(NameOf::User, text)
}

/// As [`user_number`], of a group.
///
/// # Errors
/// Likewise.
pub fn group_number(text: &str) -> Result<u32, String> {
    Names::default().number(NameOf::Group, text)
}

/// The name of the user of this number, if it has one.
pub fn user_name(number: u32) -> Option<String> {
    User::from_uid(number.into()).ok().flatten().map(|user| user.name)
}

/// As [`user_name`], of a group.
pub fn group_name(number: u32) -> Option<String> {
    Group::from_gid(number.into()).ok().flatten().map(|group| group.name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameOf {
    User,
    Group,
}

/// The names that were looked up so far: a confined process may not be able to find them again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeMap<(NameOf, String), u32>>>);

impl Names {
    /// `text` is a name or a number.
    pub(super) fn number(&self, of: NameOf, text: &str) -> Result<u32, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            return text.parse().map_err(|_| format!("{text} is too large for the number of a user or group"));
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (of, text.to_owned());
        let found = match FILES_ONLY.load(Ordering::Relaxed) {
            true => in_files(of, text).or_else(|| known.get(&key).copied()).ok_or_else(|| unknown_when_confined(of, text)),
            false => look_up(of, text),
        };
        if let Ok(number) = found {
            known.insert(key, number);
        }
        found
    }
}

/// By the C library, which asks what `/etc/nsswitch.conf` names.
fn look_up(of: NameOf, name: &str) -> Result<u32, String> {
    let found: Result<Option<u32>, Errno> = match of {
        NameOf::User => User::from_name(name).map(|found| found.map(|user| user.uid.as_raw())),
        NameOf::Group => Group::from_name(name).map(|found| found.map(|group| group.gid.as_raw())),
    };
    let (what, list, _) = words(of);
    match found {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(format!("there is no {what} '{name}'; use a name that `getent {list}` shows, or a number")),
        Err(errno) => Err(format!("the {what} '{name}' cannot be looked up ({errno}); use its number")),
    }
}

fn in_files(of: NameOf, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(FILES[usize::from(of == NameOf::Group)]).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

fn unknown_when_confined(of: NameOf, name: &str) -> String {
    let (what, _, number) = words(of);
    let file = FILES[usize::from(of == NameOf::Group)];
    format!(
        "there is no {what} '{name}' in {file}, which is all that a confined daemon can read (as root, as the file was when it \
         started): use the number ({number} {name}), or restart the daemon"
    )
}

/// The word, the database of getent, and the command that prints the number.
const fn words(of: NameOf) -> (&'static str, &'static str, &'static str) {
    match of {
        NameOf::User => ("user", "passwd", "id -u"),
        NameOf::Group => ("group", "group", "getent group"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_0_by_either_way_and_numbers_are_themselves() {
        let names = Names::default();
        for of in [NameOf::User, NameOf::Group] {
            assert_eq!(names.number(of, "root"), Ok(0));
            assert_eq!(in_files(of, "root"), Some(0));
            assert_eq!(names.number(of, "1000"), Ok(1000));
            let text = names.number(of, "no such name").expect_err("unknown");
            assert!(text.contains("'no such name'; use a name that `getent "), "{text}");
            assert!(names.number(of, "4294967296").is_err(), "too large");
        }
        assert_eq!((user_name(0).as_deref(), group_name(0).as_deref()), (Some("root"), Some("root")));
        assert_eq!((user_name(u32::MAX), group_name(u32::MAX)), (None, None));
    }
}
