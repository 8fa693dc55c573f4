//! Layers of values, each remembering where it was set.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::error::InvalidValue;
use super::{Config, ConfigError, DEFAULTS};

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `config.default.toml`.
    Default,
    /// The file given with `--config`.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The file that `ACG_CONFIG` names.
    Clowder(PathBuf),
    /// A flag.
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

/// A key as the names on the way to it.
pub(super) type KeyPath = Vec<String>;

#[derive(Clone)]
pub(super) struct Entry {
    pub value: Value,
    pub origin: Origin,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be a secret.
        write!(f, "Entry({})", self.origin)
    }
}

/// Every key with the value that won.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    pub entries: BTreeMap<KeyPath, Entry>,
}

/// Tables whose keys are the user's own names.
const NAMED_BY_USER: &[&[&str]] = &[&["api", "keys"]];

impl Layers {
    pub fn defaults() -> Self {
        let table: Table = DEFAULTS
            .parse()
            .expect("config.default.toml is part of the program and covered by a test");
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
            source,
        })?;
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| ConfigError::Syntax {
                path: path.into(),
                problem: problem(&text, &error),
            })?;
        let mut found = Vec::new();
        flatten(&table, &mut Vec::new(), &mut |path, value| {
            found.push((path.to_vec(), value.clone()));
        });
        let origin = Origin::File(path.into());
        for (path, value) in found {
            self.set(path, value, origin.clone())?;
        }
        Ok(())
    }

    pub fn add_variable(&mut self, name: &str, path: &str, text: &str) -> Result<(), ConfigError> {
        let path = path.to_lowercase().split("__").map(str::to_owned).collect();
        self.set_text(path, text, Origin::Environment(name.to_owned()))
    }

    /// What a key is set to so far, if it is a text.
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

    /// A text takes the shape of the default it replaces, so that nobody has to quote a string in
    /// the environment, and "8080" stays a string where a string belongs.
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
        if !self.entries.contains_key(&path) && !is_named_by_user(&path) {
            let key = path.join(".");
            return Err(ConfigError::Unknown {
                nearest: self.nearest(&key),
                key,
                origin,
            });
        }
        self.entries.insert(path, Entry { value, origin });
        Ok(())
    }

    fn nearest(&self, key: &str) -> Option<String> {
        self.entries
            .keys()
            .map(|path| path.join("."))
            .map(|known| (strsim::jaro_winkler(&known, key), known))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, known)| known)
    }

    /// The merged values as types.
    pub fn read(&self) -> Result<Config, ConfigError> {
        let mut table = Table::new();
        for (path, entry) in &self.entries {
            insert(&mut table, path, entry.value.clone());
        }
        for path in NAMED_BY_USER {
            ensure_table(&mut table, path);
        }
        serde_path_to_error::deserialize(table).map_err(|error| {
            let key = error.path().to_string();
            let entry = self.find(&key);
            ConfigError::Value {
                origin: entry.map_or(Origin::Default, |entry| entry.origin.clone()),
                problem: error.into_inner().to_string().trim().replace('\n', " "),
                cure: Self::example(&key),
                key,
            }
        })
    }

    /// Says where an invalid value was set.
    pub fn locate(&self, invalid: InvalidValue) -> ConfigError {
        let key = invalid.path();
        ConfigError::Value {
            origin: self
                .find(&key)
                .map_or(Origin::Default, |entry| entry.origin.clone()),
            key,
            problem: invalid.problem,
            cure: invalid.cure,
        }
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|(path, _)| path.join(".") == key)
            .map(|(_, entry)| entry)
    }

    fn example(key: &str) -> String {
        match Self::defaults().find(key) {
            Some(default) => format!("the default is {}", default.value),
            None => "see the comments in `cloud-connector config --defaults`".to_owned(),
        }
    }
}

/// Where and what, without the line itself: it may hold a secret.
fn problem(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let at = text.floor_char_boundary(at);
    let line = text[..at].matches('\n').count() + 1;
    format!("line {line}: {}", error.message().replace('\n', " "))
}

fn is_named_by_user(path: &[String]) -> bool {
    NAMED_BY_USER
        .iter()
        .any(|table| path.len() == table.len() + 1 && path.iter().zip(*table).all(|(a, b)| a == b))
}

/// Visits every value that is not a table of sections. A user-named entry is one value, whatever
/// its shape.
fn flatten(table: &Table, path: &mut KeyPath, visit: &mut impl FnMut(&[String], &Value)) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            Value::Table(inner) if !is_named_by_user(path) => flatten(inner, path, visit),
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
