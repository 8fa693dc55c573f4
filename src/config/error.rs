//! Configuration errors. Each error names the setting, the origin of the value, and the fix.

use std::path::PathBuf;

use super::Origin;

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A configuration file cannot be read.
    #[error(
        "cannot read the configuration file {}: {source}; check the path given with {path_source}",
        path.display()
    )]
    Unreadable {
        /// Path of the configuration file.
        path: PathBuf,
        /// The flag or environment variable that contains the path.
        path_source: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A configuration file is not valid TOML or JSON.
    #[error("syntax error in the configuration file {}: {problem}", path.display())]
    Syntax {
        /// Path of the configuration file.
        path: PathBuf,
        /// Line number and description of the error.
        problem: String,
    },
    /// No setting with this name exists.
    #[error(
        "unknown setting {setting_name} ({origin}){}; list all settings with \
         `cloud-connector config --defaults`",
        suggestion_text(similar_name.as_deref())
    )]
    UnknownSetting {
        /// The unknown name.
        setting_name: String,
        /// Where the unknown name was found.
        origin: Origin,
        /// The existing setting with the most similar name.
        similar_name: Option<String>,
    },
    /// The value of a setting is invalid.
    #[error("{setting_name} ({origin}): {problem}; {hint}")]
    InvalidValue {
        /// Full name of the setting, such as `http.listen`.
        setting_name: String,
        /// Where the value was set.
        origin: Origin,
        /// Why the value is invalid.
        problem: String,
        /// How to fix the value.
        hint: String,
    },
}

fn suggestion_text(similar_name: Option<&str>) -> String {
    similar_name.map_or_else(String::new, |name| format!(", did you mean {name}?"))
}

/// A value that has the right type but is not allowed. `Layers::with_origin` adds the origin of the
/// value.
#[derive(Debug)]
pub(super) struct InvalidValue {
    /// Name of the setting, such as `http.listen`. If the user chose the last part of the name,
    /// this is the name of the table, such as `api.keys`.
    pub setting_name: &'static str,
    /// The part of the name that the user chose, such as `<caller>` in `api.keys.<caller>`.
    pub user_chosen_name: Option<String>,
    /// Why the value is not allowed.
    pub problem: String,
    /// How to fix the value.
    pub hint: String,
}

impl InvalidValue {
    pub fn new(
        setting_name: &'static str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            setting_name,
            user_chosen_name: None,
            problem: problem.into(),
            hint: hint.into(),
        }
    }

    /// Sets the part of the setting's name that the user chose.
    pub fn with_user_chosen_name(mut self, name: &str) -> Self {
        self.user_chosen_name = Some(name.to_owned());
        self
    }

    /// Returns the full name of the setting.
    pub fn full_name(&self) -> String {
        match &self.user_chosen_name {
            Some(name) => format!("{}.{name}", self.setting_name),
            None => self.setting_name.to_owned(),
        }
    }
}
