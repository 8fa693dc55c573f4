//! Merges the layers of the configuration, and stores the origin of each value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{Config, ConfigError, DEFAULT_CONFIG_TOML};
use service::settings::InvalidValue;

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The embedded `config.default.toml`.
    Default,
    /// The file given with `--config`.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The platform's configuration file. The environment variable `ACG_CONFIG` contains its path.
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

/// The parts of a setting's full name: `http.listen` has the parts `http` and `listen`.
pub(super) type SettingPath = Vec<String>;

/// The value of one setting, and its origin.
#[derive(Clone)]
pub(super) struct Setting {
    pub value: Value,
    pub origin: Origin,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value is omitted because it may be a secret.
        write!(f, "Setting({})", self.origin)
    }
}

/// The merged configuration. Contains all settings with their values and origins.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    pub settings: BTreeMap<SettingPath, Setting>,
}

/// Tables in which the user chooses the names of the settings.
const USER_NAMED_TABLES: &[&[&str]] = &[&["api", "keys"]];

impl Layers {
    pub fn defaults() -> Self {
        let table: Table = DEFAULT_CONFIG_TOML
            .parse()
            .expect("config.default.toml is embedded in the program and tested");
        let mut settings = BTreeMap::new();
        visit_settings(&table, &mut Vec::new(), &mut |path, value| {
            let setting = Setting {
                value: value.clone(),
                origin: Origin::Default,
            };
            settings.insert(path.to_vec(), setting);
        });
        Self { settings }
    }

    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.into(),
            path_source: "--config",
            source,
        })?;
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| ConfigError::Syntax {
                path: path.into(),
                problem: describe_syntax_error(&text, &error),
            })?;
        let mut values = Vec::new();
        visit_settings(&table, &mut Vec::new(), &mut |path, value| {
            values.push((path.to_vec(), value.clone()));
        });
        let origin = Origin::File(path.into());
        for (path, value) in values {
            self.set_value(path, value, origin.clone())?;
        }
        Ok(())
    }

    /// Adds the value of an environment variable. `name_without_prefix` is the part of the
    /// variable's name after `CLOUD_CONNECTOR__`, such as `HTTP__LISTEN`.
    pub fn add_variable(
        &mut self,
        variable_name: &str,
        name_without_prefix: &str,
        text: &str,
    ) -> Result<(), ConfigError> {
        let path = name_without_prefix
            .to_lowercase()
            .split("__")
            .map(str::to_owned)
            .collect();
        self.set_from_text(path, text, Origin::Environment(variable_name.to_owned()))
    }

    /// Returns the current value of a setting, or `None` if the value is not a string.
    pub fn string_value(&self, setting_name: &str) -> Option<&str> {
        self.find_setting(setting_name)?.value.as_str()
    }

    /// Adds a value from the platform's configuration file.
    pub fn add_clowder_value(
        &mut self,
        file: &Path,
        setting_name: &str,
        text: &str,
    ) -> Result<(), ConfigError> {
        let path = setting_name.split('.').map(str::to_owned).collect();
        self.set_from_text(path, text, Origin::Clowder(file.to_owned()))
    }

    /// Adds the value of a command-line flag.
    pub fn add_flag(
        &mut self,
        flag: &str,
        setting_name: &str,
        text: &str,
    ) -> Result<(), ConfigError> {
        let path = setting_name.split('.').map(str::to_owned).collect();
        self.set_from_text(path, text, Origin::Flag(flag.to_owned()))
    }

    /// Sets a value from the text of an environment variable or a flag. If the default value of the
    /// setting is a string, the text itself is the value. Otherwise the text is parsed as a TOML
    /// value.
    fn set_from_text(
        &mut self,
        path: SettingPath,
        text: &str,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        let is_string = match self.settings.get(&path) {
            Some(setting) => setting.value.is_str(),
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
        self.set_value(path, value, origin)
    }

    fn set_value(
        &mut self,
        path: SettingPath,
        value: Value,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        if !self.settings.contains_key(&path) && !is_user_named(&path) {
            let setting_name = path.join(".");
            return Err(ConfigError::UnknownSetting {
                similar_name: self.most_similar_name(&setting_name),
                setting_name,
                origin,
            });
        }
        self.settings.insert(path, Setting { value, origin });
        Ok(())
    }

    fn most_similar_name(&self, setting_name: &str) -> Option<String> {
        self.settings
            .keys()
            .map(|path| path.join("."))
            .map(|candidate| (strsim::jaro_winkler(&candidate, setting_name), candidate))
            .filter(|(similarity, _)| *similarity > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, candidate)| candidate)
    }

    /// Converts the merged values to the typed configuration.
    pub fn deserialize(&self) -> Result<Config, ConfigError> {
        let mut table = Table::new();
        for (path, setting) in &self.settings {
            insert_value(&mut table, path, setting.value.clone());
        }
        for path in USER_NAMED_TABLES {
            ensure_table(&mut table, path);
        }
        serde_path_to_error::deserialize(table).map_err(|error| {
            let setting_name = error.path().to_string();
            let setting = self.find_setting(&setting_name);
            ConfigError::InvalidValue {
                origin: setting.map_or(Origin::Default, |setting| setting.origin.clone()),
                problem: error.into_inner().to_string().trim().replace('\n', " "),
                hint: Self::default_value_hint(&setting_name),
                setting_name,
            }
        })
    }

    /// Adds the origin of the value to the error.
    pub fn with_origin(&self, invalid: InvalidValue) -> ConfigError {
        let setting_name = invalid.full_name();
        ConfigError::InvalidValue {
            origin: self
                .find_setting(&setting_name)
                .map_or(Origin::Default, |setting| setting.origin.clone()),
            setting_name,
            problem: invalid.problem,
            hint: invalid.hint,
        }
    }

    fn find_setting(&self, setting_name: &str) -> Option<&Setting> {
        self.settings
            .iter()
            .find(|(path, _)| path.join(".") == setting_name)
            .map(|(_, setting)| setting)
    }

    fn default_value_hint(setting_name: &str) -> String {
        match Self::defaults().find_setting(setting_name) {
            Some(default) => format!("the default is {}", default.value),
            None => "see the comments in `cloud-connector config --defaults`".to_owned(),
        }
    }
}

/// Returns the line number and a description of the error. The text of the line is omitted, because
/// the line may contain a secret.
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

/// Calls `visit` for every setting in a table. In a user-named table, each name is one setting,
/// even if its value is a table.
fn visit_settings(
    table: &Table,
    path: &mut SettingPath,
    visit: &mut impl FnMut(&[String], &Value),
) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            Value::Table(child_table) if !is_user_named(path) => {
                visit_settings(child_table, path, visit);
            }
            value => visit(path, value),
        }
        path.pop();
    }
}

/// Inserts a value into nested tables. Creates tables that do not exist.
fn insert_value(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            table.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            let child_table = table
                .entry(name.clone())
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(child_table) = child_table {
                insert_value(child_table, rest, value);
            }
        }
    }
}

/// Creates the nested tables of the path if they do not exist.
fn ensure_table(table: &mut Table, path: &[&str]) {
    if let [name, rest @ ..] = path {
        let child_table = table
            .entry((*name).to_owned())
            .or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(child_table) = child_table {
            ensure_table(child_table, rest);
        }
    }
}
