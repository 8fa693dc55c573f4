//! Reads the configuration file that Clowder, the platform's deployment operator, creates. The file
//! contains the addresses and credentials of Kafka and PostgreSQL. The environment variable
//! `ACG_CONFIG` contains the path of the file.
//!
//! Clowder assigns the values in this file at deployment time. Therefore they override the values
//! from the `--config` file and from environment variables. Command-line flags override them.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::ConfigError;
use super::layers::Layers;

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ClowderFile {
    kafka: Option<Kafka>,
    database: Option<Database>,
    metrics_port: Option<u16>,
    private_port: Option<u16>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Kafka {
    brokers: Vec<Broker>,
    topics: Vec<Topic>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Broker {
    hostname: String,
    port: Option<u16>,
    #[serde(default)]
    authtype: Option<String>,
    #[serde(default)]
    cacert: Option<String>,
    #[serde(default)]
    sasl: Option<Sasl>,
    #[serde(default)]
    security_protocol: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sasl {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default, rename = "saslMechanism")]
    mechanism: Option<String>,
    #[serde(default)]
    security_protocol: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Topic {
    requested_name: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Database {
    hostname: String,
    port: u16,
    name: String,
    username: String,
    password: String,
    #[serde(default)]
    ssl_mode: Option<String>,
    #[serde(default)]
    rds_ca: Option<String>,
}

pub(super) fn add_file(layers: &mut Layers, file: &Path) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Unreadable {
        path: file.into(),
        path_source: "ACG_CONFIG",
        source,
    })?;
    let clowder: ClowderFile = serde_json::from_str::<Value>(&text)
        .and_then(serde_json::from_value)
        .map_err(|error| ConfigError::Syntax {
            path: file.into(),
            problem: error.to_string(),
        })?;
    for (setting_name, value) in to_settings(layers, clowder) {
        layers.add_clowder_value(file, setting_name, &value)?;
    }
    Ok(())
}

/// Returns the names and values of the settings that the file contains.
fn to_settings(layers: &Layers, clowder: ClowderFile) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    let mut add_setting = |setting_name, value: Option<String>| {
        if let Some(value) = value {
            settings.push((setting_name, value));
        }
    };
    if let Some(kafka) = clowder.kafka {
        let addresses: Vec<String> = kafka
            .brokers
            .iter()
            .map(|broker| format!("{}:{}", broker.hostname, broker.port.unwrap_or(9092)))
            .collect();
        add_setting(
            "kafka.brokers",
            (!addresses.is_empty()).then(|| addresses.join(",")),
        );
        // All brokers belong to one cluster and have the same credentials, so the credentials of
        // the first broker are used.
        if let Some(broker) = kafka.brokers.into_iter().next() {
            let uses_sasl = broker.authtype.as_deref() == Some("sasl");
            let sasl = broker.sasl;
            let protocol = broker.security_protocol.or_else(|| {
                let sasl_protocol = sasl
                    .as_ref()
                    .and_then(|sasl| sasl.security_protocol.clone());
                sasl_protocol.or_else(|| uses_sasl.then(|| "SASL_SSL".to_owned()))
            });
            add_setting("kafka.security", protocol);
            add_setting("kafka.ca", broker.cacert);
            if let Some(sasl) = sasl {
                add_setting("kafka.username", sasl.username);
                add_setting("kafka.password", sasl.password);
                add_setting("kafka.sasl_mechanism", sasl.mechanism);
            }
        }
        for setting_name in [
            "kafka.ingress_topic",
            "kafka.answers_topic",
            "kafka.slow_topic",
            "inventory.topic",
            "events.kafka_topic",
        ] {
            // The name that Clowder assigns to a topic may differ from the requested name.
            let requested_name = layers.string_value(setting_name);
            let assigned_topic = kafka
                .topics
                .iter()
                .find(|topic| Some(topic.requested_name.as_str()) == requested_name);
            add_setting(setting_name, assigned_topic.map(|topic| topic.name.clone()));
        }
    }
    if let Some(database) = clowder.database {
        add_setting("postgres.host", Some(database.hostname));
        add_setting("postgres.port", Some(database.port.to_string()));
        add_setting("postgres.database", Some(database.name));
        add_setting("postgres.user", Some(database.username));
        add_setting("postgres.password", Some(database.password));
        add_setting("postgres.tls", database.ssl_mode);
        add_setting("postgres.ca", database.rds_ca);
    }
    add_setting(
        "http.metrics_listen",
        clowder.metrics_port.map(|port| format!("0.0.0.0:{port}")),
    );
    add_setting(
        "http.listen",
        clowder.private_port.map(|port| format!("0.0.0.0:{port}")),
    );
    settings
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigError, LoadedConfig, Overrides, load_with_environment};
    use kafka::{KafkaSecurity, SaslMechanism};
    use service::settings::PemSource;
    use store_postgres::PostgresTls;

    fn load_clowder_file(text: &str) -> Result<LoadedConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("acg.json");
        std::fs::write(&file, text).unwrap();
        let variables = [
            ("ACG_CONFIG".to_owned(), file.display().to_string()),
            (
                "CLOUD_CONNECTOR__MQTT__URL".to_owned(),
                "mqtt://b:1883".to_owned(),
            ),
            (
                "CLOUD_CONNECTOR__POSTGRES__HOST".to_owned(),
                "from-environment".to_owned(),
            ),
        ];
        load_with_environment(&Overrides::default(), variables)
    }

    #[test]
    fn values_of_the_clowder_file_override_the_environment() {
        let loaded = load_clowder_file(
            r#"{"kafka": {"brokers": [
                  {"hostname": "k1", "port": 9093, "authtype": "sasl", "cacert": "-----BEGIN CERTIFICATE-----\nx",
                   "sasl": {"username": "u", "password": "hush-hush", "saslMechanism": "SCRAM-SHA-256"},
                   "securityProtocol": "SASL_SSL"},
                  {"hostname": "k2", "port": 9093}],
                 "topics": [{"requestedName": "platform.cloud-connector.rhc-message-ingress", "name": "renamed"},
                            {"requestedName": "platform.cloud-connector.rhc-message-slow", "name": "renamed-slow"}]},
                "database": {"hostname": "db", "port": 5433, "name": "n", "username": "du", "password": "dp-dp-dp",
                   "sslMode": "verify-full", "rdsCa": "-----BEGIN CERTIFICATE-----\ny", "adminPassword": "ignored"},
                "metricsPort": 9000, "privatePort": 10000, "logging": {"type": "null"}}"#,
        )
        .unwrap();
        let config = &loaded.config;
        assert_eq!(config.kafka.brokers.as_deref(), Some("k1:9093,k2:9093"));
        assert_eq!(config.kafka.security, KafkaSecurity::SaslSsl);
        assert_eq!(config.kafka.sasl_mechanism, SaslMechanism::ScramSha256);
        assert_eq!(config.kafka.username, "u");
        assert!(matches!(config.kafka.ca, Some(PemSource::Inline(_))));
        assert_eq!(config.kafka.ingress_topic, "renamed");
        assert_eq!(config.kafka.slow_topic, "renamed-slow");
        assert_eq!(
            config.kafka.answers_topic,
            "platform.cloud-connector.rhc-message-answers"
        );
        assert_eq!(config.postgres.host, "db");
        assert_eq!(config.postgres.port, 5433);
        assert_eq!(config.postgres.tls, PostgresTls::VerifyFull);
        assert_eq!(config.http.listen.to_string(), "0.0.0.0:10000");
        assert_eq!(config.http.metrics_listen.unwrap().port(), 9000);
        let annotated = loaded.to_annotated_toml();
        assert!(
            !annotated.contains("hush-hush") && !annotated.contains("dp-dp-dp"),
            "{annotated}"
        );
        assert!(annotated.contains("# ACG_CONFIG"), "{annotated}");
    }

    #[test]
    fn a_setting_that_is_not_in_the_clowder_file_keeps_its_value() {
        let loaded = load_clowder_file("{}").unwrap();
        assert_eq!(loaded.config.postgres.host, "from-environment");
    }

    #[test]
    fn an_error_in_the_clowder_file_contains_the_path_or_the_setting() {
        let text = load_clowder_file("{").unwrap_err().to_string();
        assert!(text.contains("acg.json"), "{text}");
        let text = load_clowder_file(
            r#"{"database": {"hostname": "d", "port": 1, "name": "n", "username": "u", "password": "p", "sslMode": "prefer"}}"#,
        )
        .unwrap_err()
        .to_string();
        assert!(
            text.contains("postgres.tls") && text.contains("ACG_CONFIG"),
            "{text}"
        );
    }
}
