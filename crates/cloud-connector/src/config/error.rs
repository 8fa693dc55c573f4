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
