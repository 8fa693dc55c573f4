//! The effective configuration as a TOML document, each line with its origin.

use std::fmt::Write as _;

use super::layers::Layers;

/// Keys whose values never show, by the table that holds them.
const SECRET_TABLES: &[&[&str]] = &[&["api", "keys"]];

/// Names whose values never show, wherever they stand.
const SECRET_NAMES: &[&str] = &["password"];

pub(super) fn annotated(layers: &Layers) -> String {
    let mut text = String::new();
    let mut section: Option<&[String]> = None;
    for (path, entry) in in_sections(layers) {
        let Some((name, table)) = path.split_last() else {
            continue;
        };
        if section != Some(table) {
            let gap = if section.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{gap}[{}]", table.join("."));
            section = Some(table);
        }
        let is_empty = entry.value.as_str().is_some_and(str::is_empty);
        let is_secret = SECRET_TABLES.iter().any(|secret| table == *secret)
            || SECRET_NAMES.contains(&name.as_str());
        let value = if is_secret && !is_empty {
            "\"********\"".to_owned()
        } else {
            entry.value.to_string()
        };
        let _ = writeln!(text, "{} = {value}  # {}", quoted(name), entry.origin);
    }
    text
}

/// A table's own values before its sub-tables, as TOML wants it.
fn in_sections(layers: &Layers) -> Vec<(&super::layers::KeyPath, &super::layers::Entry)> {
    let mut entries: Vec<_> = layers.entries.iter().collect();
    entries.sort_by_key(|(path, _)| {
        let (name, table) = path.split_last().map_or(("", &path[..]), |(n, t)| (n, t));
        (table.to_vec(), name.to_owned())
    });
    entries
}

fn quoted(name: &str) -> String {
    let bare = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if bare {
        name.to_owned()
    } else {
        toml::Value::String(name.to_owned()).to_string()
    }
}
