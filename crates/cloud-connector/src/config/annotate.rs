//! Formats the effective configuration as TOML. A comment on each line states the origin of the
//! value.

use std::fmt::Write as _;

use super::layers::{Layers, Setting, SettingPath};

/// Tables in which all values are secret.
const SECRET_TABLES: &[&[&str]] = &[&["api", "keys"]];

/// Settings with one of these names are secret, in all tables.
const SECRET_SETTING_NAMES: &[&str] = &["password"];

pub(super) fn to_annotated_toml(layers: &Layers) -> String {
    let mut text = String::new();
    let mut current_table: Option<&[String]> = None;
    for (path, setting) in sorted_by_table(layers) {
        let Some((name, table)) = path.split_last() else {
            continue;
        };
        if current_table != Some(table) {
            let blank_line = if current_table.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{blank_line}[{}]", table.join("."));
            current_table = Some(table);
        }
        let is_empty = setting.value.as_str().is_some_and(str::is_empty);
        let is_secret = SECRET_TABLES.iter().any(|secret| table == *secret)
            || SECRET_SETTING_NAMES.contains(&name.as_str());
        let value = if is_secret && !is_empty {
            "\"********\"".to_owned()
        } else {
            setting.value.to_string()
        };
        let _ = writeln!(text, "{} = {value}  # {}", toml_key(name), setting.origin);
    }
    text
}

/// Returns the settings sorted by table, because in TOML the values of a table must come before its
/// sub-tables.
fn sorted_by_table(layers: &Layers) -> Vec<(&SettingPath, &Setting)> {
    let mut settings: Vec<_> = layers.settings.iter().collect();
    settings.sort_by_key(|(path, _)| {
        let (name, table) = path
            .split_last()
            .map_or(("", &path[..]), |(name, table)| (name, table));
        (table.to_vec(), name.to_owned())
    });
    settings
}

/// Returns the name of a setting as a TOML key, with quotes if TOML requires them.
fn toml_key(setting_name: &str) -> String {
    let is_bare = !setting_name.is_empty()
        && setting_name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare {
        setting_name.to_owned()
    } else {
        toml::Value::String(setting_name.to_owned()).to_string()
    }
}
