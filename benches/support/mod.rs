//! What benchmarks share: the services that `dev/with-services` runs, and how figures are shown.

#![allow(
    dead_code,
    reason = "every benchmark takes the whole of it in and uses its part"
)]

pub mod process;
pub mod report;

use std::path::Path;

use anyhow::{Context as _, Result};
use cloud_connector::config::{Config, Overrides, load_with};
use sqlx::{Connection as _, PgConnection};

/// What `dev/with-services` runs.
pub struct Services {
    pub postgres: u16,
    pub kafka: u16,
    pub mosquitto: u16,
}

impl Services {
    pub fn read() -> Result<Self> {
        let file = root().join("target/services/env");
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!(
                "{} is missing; run it as `make bench-…`, which starts the services",
                file.display()
            )
        })?;
        let port = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .with_context(|| format!("no {name} in {}", file.display()))
        };
        Ok(Self {
            postgres: port("POSTGRES_PORT")?,
            kafka: port("KAFKA_PORT")?,
            mosquitto: port("MOSQUITTO_PORT")?,
        })
    }

    /// Variables of a connector that uses this database.
    pub fn postgres_settings(&self, database: &str) -> Vec<(String, String)> {
        variables(&[
            ("postgres.host", "127.0.0.1"),
            ("postgres.port", &self.postgres.to_string()),
            ("postgres.database", database),
            ("postgres.user", "cc"),
            ("postgres.password", "cc-secret"),
            ("postgres.tls", "disable"),
        ])
    }

    pub fn database_url(&self, name: &str) -> String {
        let port = self.postgres;
        format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable")
    }

    pub async fn connect(&self, name: &str) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.database_url(name)).await?)
    }

    /// A database of its own, with our tables in it.
    pub async fn database(&self) -> Result<String> {
        let name = format!("bench_{}", uuid::Uuid::new_v4().simple());
        self.command(format!("CREATE DATABASE {name}")).await?;
        cloud_connector::runtime::migrate(&config(self.postgres_settings(&name))?).await?;
        Ok(name)
    }

    pub async fn drop_database(&self, name: &str) -> Result<()> {
        self.command(format!("DROP DATABASE {name} WITH (FORCE)"))
            .await
    }

    /// What was written before is not to be paid for by what is measured next.
    pub async fn settle(&self) -> Result<()> {
        self.command("CHECKPOINT".to_owned()).await
    }

    async fn command(&self, statement: String) -> Result<()> {
        let mut server = self.connect("cc").await?;
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&mut server)
            .await?;
        Ok(server.close().await?)
    }
}

/// Settings by their keys, as variables of the environment.
pub fn variables(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let name = |key: &str| format!("CLOUD_CONNECTOR__{}", key.replace('.', "__").to_uppercase());
    settings
        .iter()
        .map(|(key, value)| (name(key), (*value).to_owned()))
        .collect()
}

pub fn config(variables: Vec<(String, String)>) -> Result<Config> {
    Ok(load_with(&Overrides::default(), variables)?.config)
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
