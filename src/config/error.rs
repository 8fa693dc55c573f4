//! Configuration errors. Each names the setting, where it was set, and how to fix it.

use std::path::PathBuf;

use super::Origin;

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A configuration file cannot be read.
    #[error(
        "cannot read the configuration file {}: {source}; check the path given with {given_with}",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The flag or environment variable that names the file.
        given_with: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A configuration file is not valid TOML or JSON.
    #[error("syntax error in the configuration file {}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line and description of the error.
        problem: String,
    },
    /// There is no setting with this name.
    #[error(
        "unknown setting {key} ({origin}){}; list all with `cloud-connector config --defaults`",
        suggestion(similar.as_deref())
    )]
    UnknownKey {
        /// The unknown name.
        key: String,
        /// Where the name is used.
        origin: Origin,
        /// The existing setting with the most similar name.
        similar: Option<String>,
    },
    /// The value of a setting is invalid.
    #[error("{key} ({origin}): {problem}; {hint}")]
    InvalidValue {
        /// The setting.
        key: String,
        /// Where the value was set.
        origin: Origin,
        /// Why the value is invalid.
        problem: String,
        /// How to fix the value.
        hint: String,
    },
}

fn suggestion(similar: Option<&str>) -> String {
    similar.map_or_else(String::new, |name| format!(", did you mean {name}?"))
}

/// A value that has the right type but cannot work. `Layers::locate` adds where it was set.
#[derive(Debug)]
pub(super) struct InvalidValue {
    pub key: &'static str,
    /// The user-chosen name below `key`, for settings such as `api.keys.<caller>`.
    pub entry: Option<String>,
    pub problem: String,
    pub hint: String,
}

impl InvalidValue {
    pub fn new(key: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            key,
            entry: None,
            problem: problem.into(),
            hint: hint.into(),
        }
    }

    /// Sets the user-chosen name below the key.
    pub fn in_entry(mut self, entry: &str) -> Self {
        self.entry = Some(entry.to_owned());
        self
    }

    /// The full name of the setting.
    pub fn path(&self) -> String {
        match &self.entry {
            Some(entry) => format!("{}.{entry}", self.key),
            None => self.key.to_owned(),
        }
    }
}
