//! What can be wrong with a configuration. Each names the key, where it was set, and the cure.

use std::path::PathBuf;

use super::Origin;

/// Why the configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}; check the path given with --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is malformed.
    #[error("the configuration file {} is malformed: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        problem: String,
    },
    /// No such key.
    #[error("unknown key {key} ({origin}){}; `cloud-connector config --defaults` lists all keys", suggestion(nearest.as_deref()))]
    Unknown {
        /// The key.
        key: String,
        /// Where it was set.
        origin: Origin,
        /// The nearest name there is.
        nearest: Option<String>,
    },
    /// The value does not do.
    #[error("{key} ({origin}): {problem}; {cure}")]
    Value {
        /// The key.
        key: String,
        /// Where it was set.
        origin: Origin,
        /// What is wrong.
        problem: String,
        /// What would do.
        cure: String,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", did you mean {name}?"))
}

/// A value that cannot work, found after reading: the key, the problem, the cure.
#[derive(Debug)]
pub(super) struct InvalidValue {
    pub key: &'static str,
    pub name: Option<String>,
    pub problem: String,
    pub cure: String,
}

impl InvalidValue {
    pub fn new(key: &'static str, problem: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            key,
            name: None,
            problem: problem.into(),
            cure: cure.into(),
        }
    }

    /// Of one entry in a table of names.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    pub fn path(&self) -> String {
        match &self.name {
            Some(name) => format!("{}.{name}", self.key),
            None => self.key.to_owned(),
        }
    }
}
