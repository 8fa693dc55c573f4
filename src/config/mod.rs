//! Configuration: the embedded defaults, a file, the environment and flags, merged in that order.
//!
//! This is the only room that reads the environment. Every key stands in `config.default.toml`
//! with its comment; a key that does not is refused with the nearest name. Where each value came
//! from is kept, because "why is it set to that?" is the first question of a bad night.

mod annotate;
mod clowder;
mod duration;
mod error;
mod layers;
mod model;
mod secret;
mod validate;

use std::path::PathBuf;

pub use duration::HumanDuration;
pub use error::ConfigError;
pub use layers::Origin;
pub use model::{
    Api, ApiRateLimit, Broker, BrokerTls, CallerKey, Config, Data, Http, HttpTls, Kafka,
    KafkaSecurity, Log, LogFormat, LookupMode, Mqtt, Pem, Postgres, PostgresTls, Record,
    SaslMechanism, Scope, Shutdown, TenantConfig, Updaters,
};
pub use secret::Secret;

use layers::Layers;

/// The defaults, as shipped and as documented.
pub const DEFAULTS: &str = include_str!("../../config.default.toml");

/// Names the file in which the platform says where its services are.
const CLOWDER_VARIABLE: &str = "ACG_CONFIG";
const ENVIRONMENT_PREFIX: &str = "CLOUD_CONNECTOR__";

/// What the command line contributes.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// Flags: the flag's name, the key's path, the value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// A configuration that was checked, and where its values came from.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The values.
    pub config: Config,
    layers: Layers,
}

impl LoadedConfig {
    /// Every key with its value and origin, secrets masked, as a TOML document.
    #[must_use]
    pub fn to_annotated_toml(&self) -> String {
        annotate::annotated(&self.layers)
    }
}

/// Merges the defaults, the file, this process's environment and the flags.
///
/// # Errors
/// The first thing that is wrong, naming its key, where it was set, and what would do.
pub fn load(overrides: &Overrides) -> Result<LoadedConfig, ConfigError> {
    // A variable that is not UTF-8 cannot be one of ours by name, or is refused by its value.
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        (name.starts_with(ENVIRONMENT_PREFIX) || name == CLOWDER_VARIABLE)
            .then(|| (name, value.to_string_lossy().into_owned()))
    });
    load_with(overrides, environment)
}

/// [`load`] with the environment as an argument.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    overrides: &Overrides,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<LoadedConfig, ConfigError> {
    let mut layers = Layers::defaults();
    if let Some(file) = &overrides.file {
        layers.add_file(file)?;
    }
    let mut clowder = None;
    for (name, value) in environment {
        if let Some(path) = name.strip_prefix(ENVIRONMENT_PREFIX) {
            layers.add_variable(&name, path, &value)?;
        } else if name == CLOWDER_VARIABLE && !value.is_empty() {
            clowder = Some(PathBuf::from(value));
        }
    }
    if let Some(file) = clowder {
        clowder::add(&mut layers, &file)?;
    }
    for (flag, path, value) in &overrides.flags {
        layers.add_flag(flag, path, value)?;
    }
    let config = layers.read()?;
    validate::validate(&config).map_err(|invalid| layers.locate(invalid))?;
    Ok(LoadedConfig { config, layers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str) -> Result<LoadedConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let overrides = Overrides {
            file: Some(file),
            flags: vec![],
        };
        load_with(&overrides, [])
    }

    fn with_env(pairs: &[(&str, &str)]) -> Result<LoadedConfig, ConfigError> {
        let pairs = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        load_with(&Overrides::default(), pairs)
    }

    #[test]
    fn the_defaults_are_valid_by_themselves() {
        let loaded = with_env(&[]).unwrap();
        assert_eq!(loaded.config.http.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(loaded.config.mqtt.prefixes, ["redhat/insights"]);
    }

    #[test]
    fn the_environment_beats_the_file_and_a_flag_beats_both() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, "[http]\nlisten = \"127.0.0.1:1\"\nmax_body = 2048\n").unwrap();
        let mut overrides = Overrides {
            file: Some(file),
            flags: vec![],
        };
        let environment = [("CLOUD_CONNECTOR__HTTP__LISTEN".into(), "127.0.0.1:2".into())];
        let loaded = load_with(&overrides, environment.clone()).unwrap();
        assert_eq!(loaded.config.http.listen.port(), 2);
        assert_eq!(loaded.config.http.max_body_bytes, 2048);
        overrides.flags = vec![("--http", "http.listen", "127.0.0.1:3".into())];
        let loaded = load_with(&overrides, environment).unwrap();
        assert_eq!(loaded.config.http.listen.port(), 3);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_name() {
        let error = with_file("[http]\nlisten_on = \"127.0.0.1:1\"\n").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("http.listen_on"), "{text}");
        assert!(text.contains("did you mean http.listen?"), "{text}");
        assert!(text.contains("c.toml"), "{text}");
        let error = with_env(&[("CLOUD_CONNECTOR__BROKR__LISTEN", "x")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("did you mean broker.listen?"), "{text}");
        assert!(text.contains("CLOUD_CONNECTOR__BROKR__LISTEN"), "{text}");
    }

    #[test]
    fn a_wrong_value_names_its_key_its_origin_and_a_right_one() {
        let text = with_env(&[("CLOUD_CONNECTOR__HTTP__LISTEN", "banana")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("http.listen"), "{text}");
        assert!(text.contains("CLOUD_CONNECTOR__HTTP__LISTEN"), "{text}");
        assert!(text.contains("127.0.0.1:8080"), "{text}");
        let text = with_file("[record]\nbatch_max = \"many\"\n")
            .unwrap_err()
            .to_string();
        assert!(text.contains("record.max_batch_size"), "{text}");
        let text = with_file("[shutdown]\ngrace = \"soon\"\n")
            .unwrap_err()
            .to_string();
        assert!(text.contains("shutdown.grace_period"), "{text}");
        assert!(text.contains("20s"), "{text}");
    }

    #[test]
    fn a_broken_file_says_where() {
        let text = with_file("[http\n").unwrap_err().to_string();
        assert!(text.contains("c.toml"), "{text}");
        assert!(text.contains("line 1"), "{text}");
    }

    #[test]
    fn the_plain_broker_listens_on_loopback_only() {
        let text = with_env(&[("CLOUD_CONNECTOR__BROKER__LISTEN", "0.0.0.0:1883")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("broker.listen"), "{text}");
        assert!(text.contains("broker.tls"), "{text}");
    }

    #[test]
    fn keys_are_strings_or_objects_and_never_shown() {
        let loaded = with_file(concat!(
            "[api.keys]\n",
            "one = \"0123456789abcdef\"\n",
            "two = { secrets = [\"new-new-new-new-new\", \"old-old-old-old-old\"] }\n",
        ))
        .unwrap();
        assert_eq!(loaded.config.api.keys["two"].secrets().len(), 2);
        assert_eq!(loaded.config.api.keys["two"].scopes(), [Scope::Tenant]);
        let shown = loaded.to_annotated_toml();
        let debug = format!("{loaded:?}");
        for text in [shown, debug] {
            assert!(!text.contains("0123456789abcdef"), "{text}");
            assert!(!text.contains("new-new"), "{text}");
        }
        let nothing = "[api.keys]\none = { secrets = [\"0123456789abcdef\"], scopes = [] }\n";
        let text = with_file(nothing).unwrap_err().to_string();
        assert!(text.contains("no scope"), "{text}");
        let text = with_file("[api.keys]\none = \"short\"\n")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("api.keys.one") && !text.contains("\"short\""),
            "{text}"
        );
    }

    #[test]
    fn the_shown_configuration_says_where_each_value_came_from() {
        let shown = with_env(&[("CLOUD_CONNECTOR__LOG__LEVEL", "debug")])
            .unwrap()
            .to_annotated_toml();
        assert!(
            shown.contains("level = \"debug\"  # environment CLOUD_CONNECTOR__LOG__LEVEL"),
            "{shown}"
        );
        assert!(
            shown.contains("listen = \"127.0.0.1:8080\"  # default"),
            "{shown}"
        );
        assert!(toml::from_str::<toml::Table>(&shown).is_ok(), "{shown}");
    }
}
