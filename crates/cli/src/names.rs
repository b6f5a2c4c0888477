//! Names of users and groups, of those that /etc/passwd and /etc/group have.

use std::fmt::Write as _;

use serde_json::Value;

/// Ids from JSON, with their names if they are known.
pub(crate) fn users(ids: &[Value]) -> String {
    render(ids, &read("/etc/passwd"))
}

pub(crate) fn groups(ids: &[Value]) -> String {
    render(ids, &read("/etc/group"))
}

/// Without the file, no name is known.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn render(ids: &[Value], table: &str) -> String {
    let mut text = String::new();
    for id in ids.iter().filter_map(Value::as_u64) {
        let before = if text.is_empty() { "" } else { ", " };
        let _ = match name_of(id, table) {
            Some(name) => write!(text, "{before}{name} ({id})"),
            None => write!(text, "{before}{id}"),
        };
    }
    text
}

/// Lines of both files begin with name, password and id.
fn name_of(id: u64, table: &str) -> Option<&str> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u64>().ok()? == id).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_have_names_if_the_file_has_them() {
        let table = "root:x:0:0:root:/root:/bin/sh\n\nbroken\nalice:x:1000:1000::/srv/alice:/bin/sh\n";
        let ids = [json!(1000), json!(7), json!(0)];
        assert_eq!(render(&ids, table), "alice (1000), 7, root (0)");
        assert_eq!(render(&ids, ""), "1000, 7, 0");
    }
}
