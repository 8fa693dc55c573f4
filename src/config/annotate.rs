//! Prints the effective configuration as TOML, each line with the origin of its value.

use std::fmt::Write as _;

use super::layers::{Entry, KeyPath, Layers};

/// Tables whose values are all secret.
const SECRET_TABLES: &[&[&str]] = &[&["api", "keys"]];

/// Names of secret settings, in any table.
const SECRET_NAMES: &[&str] = &["password"];

pub(super) fn annotated(layers: &Layers) -> String {
    let mut text = String::new();
    let mut current_table: Option<&[String]> = None;
    for (path, entry) in sorted_by_table(layers) {
        let Some((name, table)) = path.split_last() else {
            continue;
        };
        if current_table != Some(table) {
            let blank_line = if current_table.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{blank_line}[{}]", table.join("."));
            current_table = Some(table);
        }
        let is_empty = entry.value.as_str().is_some_and(str::is_empty);
        let is_secret = SECRET_TABLES.iter().any(|secret| table == *secret)
            || SECRET_NAMES.contains(&name.as_str());
        let value = if is_secret && !is_empty {
            "\"********\"".to_owned()
        } else {
            entry.value.to_string()
        };
        let _ = writeln!(text, "{} = {value}  # {}", toml_key(name), entry.origin);
    }
    text
}

/// TOML requires that the values of a table come before its sub-tables.
fn sorted_by_table(layers: &Layers) -> Vec<(&KeyPath, &Entry)> {
    let mut entries: Vec<_> = layers.entries.iter().collect();
    entries.sort_by_key(|(path, _)| {
        let (name, table) = path
            .split_last()
            .map_or(("", &path[..]), |(name, table)| (name, table));
        (table.to_vec(), name.to_owned())
    });
    entries
}

/// Quotes the name if TOML does not allow it as a bare key.
fn toml_key(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare {
        name.to_owned()
    } else {
        toml::Value::String(name.to_owned()).to_string()
    }
}
