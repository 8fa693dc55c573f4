//! Loads the configuration. The layers are merged in this order: embedded defaults, configuration
//! file, environment variables, the platform's configuration file (`ACG_CONFIG`), command-line
//! flags. A later layer overrides the values of earlier layers.
//!
//! This is the only module that reads the environment. `config.default.toml` lists and documents
//! all settings. An unknown setting is an error, which suggests the most similar name. The origin
//! of each value is stored for error messages and for `cloud-connector config`.

mod annotate;
mod cli_environment;
mod clowder;
mod error;
mod layers;
mod model;
mod validate;

use std::path::PathBuf;

pub use cli_environment::{CliEnvironment, cli_environment};
pub use error::ConfigError;
pub use layers::Origin;
pub use model::{Config, DataSettings, ShutdownSettings};

use layers::Layers;

/// The text of `config.default.toml`, which contains all default values with their documentation.
pub const DEFAULT_CONFIG_TOML: &str = include_str!("../../../../config.default.toml");

/// Environment variable that contains the path of the platform's configuration file. The module
/// `clowder` reads this file.
const CLOWDER_VARIABLE: &str = "ACG_CONFIG";
const ENVIRONMENT_PREFIX: &str = "CLOUD_CONNECTOR__";

/// Configuration file and settings from the command line.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// The file given with `--config`.
    pub config_file: Option<PathBuf>,
    /// Each tuple contains the name of the flag, the setting that the flag overrides, and the
    /// value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// A valid configuration, and the origin of each value.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The typed settings.
    pub config: Config,
    layers: Layers,
}

impl LoadedConfig {
    /// Returns a TOML document of all settings. Each line ends with the origin of the value.
    /// Secrets are masked.
    #[must_use]
    pub fn to_annotated_toml(&self) -> String {
        annotate::to_annotated_toml(&self.layers)
    }
}

/// Loads the configuration of this process and checks it.
///
/// # Errors
/// When the configuration is invalid. The error names the setting, the origin of the value, and the
/// fix. Only the first problem is reported.
#[expect(
    clippy::disallowed_methods,
    reason = "this module reads the environment"
)]
pub fn load(overrides: &Overrides) -> Result<LoadedConfig, ConfigError> {
    // Variables with a name that is not valid UTF-8 are skipped, because the names of all our
    // variables are valid UTF-8. In values, invalid UTF-8 is replaced.
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        (name.starts_with(ENVIRONMENT_PREFIX) || name == CLOWDER_VARIABLE)
            .then(|| (name, value.to_string_lossy().into_owned()))
    });
    load_with_environment(overrides, environment)
}

/// Like [`load`], but the environment variables are an argument.
///
/// # Errors
/// When the configuration is invalid, as for [`load`].
pub fn load_with_environment(
    overrides: &Overrides,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<LoadedConfig, ConfigError> {
    let mut layers = Layers::defaults();
    if let Some(file) = &overrides.config_file {
        layers.add_file(file)?;
    }
    let mut clowder_file = None;
    for (name, value) in environment {
        if let Some(path) = name.strip_prefix(ENVIRONMENT_PREFIX) {
            layers.add_variable(&name, path, &value)?;
        } else if name == CLOWDER_VARIABLE && !value.is_empty() {
            clowder_file = Some(PathBuf::from(value));
        }
    }
    if let Some(file) = clowder_file {
        clowder::add_file(&mut layers, &file)?;
    }
    for (flag, setting_name, value) in &overrides.flags {
        layers.add_flag(flag, setting_name, value)?;
    }
    let config = layers.deserialize()?;
    validate::validate(&config).map_err(|invalid| layers.with_origin(invalid))?;
    Ok(LoadedConfig { config, layers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Scope;

    fn load_from_file(text: &str) -> Result<LoadedConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let overrides = Overrides {
            config_file: Some(file),
            flags: vec![],
        };
        load_with_environment(&overrides, [])
    }

    fn load_from_environment(variables: &[(&str, &str)]) -> Result<LoadedConfig, ConfigError> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        load_with_environment(&Overrides::default(), variables)
    }

    #[test]
    fn the_default_configuration_is_valid() {
        let loaded = load_from_environment(&[]).unwrap();
        assert_eq!(loaded.config.http.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(loaded.config.mqtt.prefixes, ["redhat/insights"]);
    }

    #[test]
    fn a_flag_overrides_the_environment_and_the_environment_overrides_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(
            &file,
            "[http]\nlisten = \"127.0.0.1:1\"\nmax_body_bytes = 2048\n",
        )
        .unwrap();
        let mut overrides = Overrides {
            config_file: Some(file),
            flags: vec![],
        };
        let environment = [("CLOUD_CONNECTOR__HTTP__LISTEN".into(), "127.0.0.1:2".into())];
        let loaded = load_with_environment(&overrides, environment.clone()).unwrap();
        assert_eq!(loaded.config.http.listen.port(), 2);
        assert_eq!(loaded.config.http.max_body_bytes, 2048);
        overrides.flags = vec![("--http", "http.listen", "127.0.0.1:3".into())];
        let loaded = load_with_environment(&overrides, environment).unwrap();
        assert_eq!(loaded.config.http.listen.port(), 3);
    }

    #[test]
    fn the_error_for_an_unknown_setting_suggests_the_most_similar_name() {
        let error = load_from_file("[http]\nlisten_on = \"127.0.0.1:1\"\n").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("http.listen_on"), "{text}");
        assert!(text.contains("did you mean http.listen?"), "{text}");
        assert!(text.contains("c.toml"), "{text}");
        let error = load_from_environment(&[("CLOUD_CONNECTOR__BROKR__LISTEN", "x")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("did you mean broker.listen?"), "{text}");
        assert!(text.contains("CLOUD_CONNECTOR__BROKR__LISTEN"), "{text}");
    }

    #[test]
    fn the_error_for_an_invalid_value_contains_the_setting_the_origin_and_the_default() {
        let text = load_from_environment(&[("CLOUD_CONNECTOR__HTTP__LISTEN", "banana")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("http.listen"), "{text}");
        assert!(text.contains("CLOUD_CONNECTOR__HTTP__LISTEN"), "{text}");
        assert!(text.contains("127.0.0.1:8080"), "{text}");
        let text = load_from_file("[record]\nmax_batch_size = \"many\"\n")
            .unwrap_err()
            .to_string();
        assert!(text.contains("record.max_batch_size"), "{text}");
        let text = load_from_file("[shutdown]\ngrace_period = \"soon\"\n")
            .unwrap_err()
            .to_string();
        assert!(text.contains("shutdown.grace_period"), "{text}");
        assert!(text.contains("20s"), "{text}");
    }

    #[test]
    fn a_syntax_error_contains_the_file_and_the_line_number() {
        let text = load_from_file("[http\n").unwrap_err().to_string();
        assert!(text.contains("c.toml"), "{text}");
        assert!(text.contains("line 1"), "{text}");
    }

    #[test]
    fn the_listener_without_tls_requires_a_loopback_address() {
        let text = load_from_environment(&[("CLOUD_CONNECTOR__BROKER__LISTEN", "0.0.0.0:1883")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("broker.listen"), "{text}");
        assert!(text.contains("broker.tls"), "{text}");
    }

    #[test]
    fn api_keys_are_strings_or_tables_and_are_always_masked() {
        let loaded = load_from_file(concat!(
            "[api.keys]\n",
            "one = \"0123456789abcdef\"\n",
            "two = { secrets = [\"new-new-new-new-new\", \"old-old-old-old-old\"] }\n",
        ))
        .unwrap();
        assert_eq!(loaded.config.api.keys["two"].secrets().len(), 2);
        assert_eq!(loaded.config.api.keys["two"].scopes(), [Scope::Tenant]);
        let annotated = loaded.to_annotated_toml();
        let debug = format!("{loaded:?}");
        for text in [annotated, debug] {
            assert!(!text.contains("0123456789abcdef"), "{text}");
            assert!(!text.contains("new-new"), "{text}");
        }
        let no_scopes = "[api.keys]\none = { secrets = [\"0123456789abcdef\"], scopes = [] }\n";
        let text = load_from_file(no_scopes).unwrap_err().to_string();
        assert!(text.contains("no scope"), "{text}");
        let text = load_from_file("[api.keys]\none = \"short\"\n")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("api.keys.one") && !text.contains("\"short\""),
            "{text}"
        );
    }

    #[test]
    fn the_annotated_configuration_contains_the_origin_of_each_value() {
        let annotated = load_from_environment(&[("CLOUD_CONNECTOR__LOG__LEVEL", "debug")])
            .unwrap()
            .to_annotated_toml();
        assert!(
            annotated.contains("level = \"debug\"  # environment CLOUD_CONNECTOR__LOG__LEVEL"),
            "{annotated}"
        );
        assert!(
            annotated.contains("listen = \"127.0.0.1:8080\"  # default"),
            "{annotated}"
        );
        assert!(
            toml::from_str::<toml::Table>(&annotated).is_ok(),
            "{annotated}"
        );
    }
}
