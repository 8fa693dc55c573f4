//! Merges the layers of the configuration, and records where each value was set.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::error::InvalidValue;
use super::{Config, ConfigError, DEFAULTS};

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The embedded `config.default.toml`.
    Default,
    /// The file given with `--config`.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The platform's file, named by `ACG_CONFIG`.
    Clowder(PathBuf),
    /// A command-line flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Clowder(path) => write!(f, "ACG_CONFIG {}", path.display()),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The full name of a setting, split at the dots.
pub(super) type KeyPath = Vec<String>;

#[derive(Clone)]
pub(super) struct Entry {
    pub value: Value,
    pub origin: Origin,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value is omitted because it may be a secret.
        write!(f, "Entry({})", self.origin)
    }
}

/// The merged configuration: every setting with its value and origin.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    pub entries: BTreeMap<KeyPath, Entry>,
}

/// Tables in which the user chooses the names.
const USER_NAMED_TABLES: &[&[&str]] = &[&["api", "keys"]];

impl Layers {
    pub fn defaults() -> Self {
        let table: Table = DEFAULTS
            .parse()
            .expect("config.default.toml is embedded in the program and tested");
        let mut entries = BTreeMap::new();
        flatten(&table, &mut Vec::new(), &mut |path, value| {
            let entry = Entry {
                value: value.clone(),
                origin: Origin::Default,
            };
            entries.insert(path.to_vec(), entry);
        });
        Self { entries }
    }

    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.into(),
            given_with: "--config",
            source,
        })?;
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| ConfigError::Syntax {
                path: path.into(),
                problem: describe_syntax_error(&text, &error),
            })?;
        let mut values = Vec::new();
        flatten(&table, &mut Vec::new(), &mut |path, value| {
            values.push((path.to_vec(), value.clone()));
        });
        let origin = Origin::File(path.into());
        for (path, value) in values {
            self.set(path, value, origin.clone())?;
        }
        Ok(())
    }

    pub fn add_variable(&mut self, name: &str, path: &str, text: &str) -> Result<(), ConfigError> {
        let path = path.to_lowercase().split("__").map(str::to_owned).collect();
        self.set_text(path, text, Origin::Environment(name.to_owned()))
    }

    /// Returns the current value of a setting if it is a string.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.find(path)?.value.as_str()
    }

    pub fn add_clowder(&mut self, file: &Path, path: &str, text: &str) -> Result<(), ConfigError> {
        let path = path.split('.').map(str::to_owned).collect();
        self.set_text(path, text, Origin::Clowder(file.to_owned()))
    }

    pub fn add_flag(&mut self, flag: &str, path: &str, text: &str) -> Result<(), ConfigError> {
        let path = path.split('.').map(str::to_owned).collect();
        self.set_text(path, text, Origin::Flag(flag.to_owned()))
    }

    /// Sets a value from the environment or a flag. The type of the default value decides how the
    /// text is parsed: a string setting needs no quotes.
    fn set_text(&mut self, path: KeyPath, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let is_string = match self.entries.get(&path) {
            Some(entry) => entry.value.is_str(),
            None => !text.trim_start().starts_with(['{', '[']),
        };
        let value = if is_string {
            Value::String(text.to_owned())
        } else {
            format!("value = {text}")
                .parse::<Table>()
                .ok()
                .and_then(|mut table| table.remove("value"))
                .unwrap_or_else(|| Value::String(text.to_owned()))
        };
        self.set(path, value, origin)
    }

    fn set(&mut self, path: KeyPath, value: Value, origin: Origin) -> Result<(), ConfigError> {
        if !self.entries.contains_key(&path) && !is_user_named(&path) {
            let key = path.join(".");
            return Err(ConfigError::UnknownKey {
                similar: self.most_similar(&key),
                key,
                origin,
            });
        }
        self.entries.insert(path, Entry { value, origin });
        Ok(())
    }

    fn most_similar(&self, key: &str) -> Option<String> {
        self.entries
            .keys()
            .map(|path| path.join("."))
            .map(|candidate| (strsim::jaro_winkler(&candidate, key), candidate))
            .filter(|(similarity, _)| *similarity > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, candidate)| candidate)
    }

    /// Converts the merged values to the typed configuration.
    pub fn deserialize(&self) -> Result<Config, ConfigError> {
        let mut table = Table::new();
        for (path, entry) in &self.entries {
            insert(&mut table, path, entry.value.clone());
        }
        for path in USER_NAMED_TABLES {
            ensure_table(&mut table, path);
        }
        serde_path_to_error::deserialize(table).map_err(|error| {
            let key = error.path().to_string();
            let entry = self.find(&key);
            ConfigError::InvalidValue {
                origin: entry.map_or(Origin::Default, |entry| entry.origin.clone()),
                problem: error.into_inner().to_string().trim().replace('\n', " "),
                hint: Self::default_value_hint(&key),
                key,
            }
        })
    }

    /// Adds to an invalid value where it was set.
    pub fn locate(&self, invalid: InvalidValue) -> ConfigError {
        let key = invalid.path();
        ConfigError::InvalidValue {
            origin: self
                .find(&key)
                .map_or(Origin::Default, |entry| entry.origin.clone()),
            key,
            problem: invalid.problem,
            hint: invalid.hint,
        }
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|(path, _)| path.join(".") == key)
            .map(|(_, entry)| entry)
    }

    fn default_value_hint(key: &str) -> String {
        match Self::defaults().find(key) {
            Some(default) => format!("the default is {}", default.value),
            None => "see the comments in `cloud-connector config --defaults`".to_owned(),
        }
    }
}

/// Returns line number and description, without the text of the line: it may contain a secret.
fn describe_syntax_error(text: &str, error: &toml::de::Error) -> String {
    let offset = error.span().map_or(0, |span| span.start);
    let offset = text.floor_char_boundary(offset);
    let line = text[..offset].matches('\n').count() + 1;
    format!("line {line}: {}", error.message().replace('\n', " "))
}

fn is_user_named(path: &[String]) -> bool {
    USER_NAMED_TABLES
        .iter()
        .any(|table| path.len() == table.len() + 1 && path.iter().zip(*table).all(|(a, b)| a == b))
}

/// Calls `visit` for every setting. An entry of a user-named table counts as one setting, even if
/// its value is a table.
fn flatten(table: &Table, path: &mut KeyPath, visit: &mut impl FnMut(&[String], &Value)) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            Value::Table(inner) if !is_user_named(path) => flatten(inner, path, visit),
            value => visit(path, value),
        }
        path.pop();
    }
}

fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            table.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            let inner = table
                .entry(name.clone())
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

fn ensure_table(table: &mut Table, path: &[&str]) {
    if let [name, rest @ ..] = path {
        let inner = table
            .entry((*name).to_owned())
            .or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(inner) = inner {
            ensure_table(inner, rest);
        }
    }
}
