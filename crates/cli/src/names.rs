//! Users and groups by name, where they have one.

use fipsee_daemon::config::{group_name, user_name};
use serde_json::Value;

/// Ids from JSON, with their names if they are known.
pub(crate) fn users(ids: &[Value]) -> String {
    render(ids, user_name)
}

pub(crate) fn groups(ids: &[Value]) -> String {
    render(ids, group_name)
}

fn render(ids: &[Value], name_of: fn(u32) -> Option<String>) -> String {
    let shown = |id: u64| match u32::try_from(id).ok().and_then(name_of) {
        Some(name) => format!("{name} ({id})"),
        None => id.to_string(),
    };
    ids.iter().filter_map(Value::as_u64).map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_have_names_if_these_are_known() {
        let name_of = |id| (id == 1000).then(|| "alice".to_owned());
        assert_eq!(render(&[json!(1000), json!(7), json!(1_u64 << 40)], name_of), "alice (1000), 7, 1099511627776");
        assert_eq!(render(&[], name_of), "");
    }
}
