//! Helpers for all benchmarks: the services that `dev/with-services` starts, connector processes,
//! and the report.

#![allow(
    dead_code,
    reason = "each benchmark includes the whole module and uses only a part of it"
)]

pub mod process;
pub mod report;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cloud_connector::config::{Config, Overrides, load_with_environment};
use sqlx::{Connection as _, PgConnection};

/// Ports of the services that `dev/with-services` runs.
pub struct Services {
    pub postgres_port: u16,
    pub kafka_port: u16,
    pub mosquitto_port: u16,
}

impl Services {
    /// Reads the ports from the file that `dev/with-services` writes.
    pub fn from_env_file() -> Result<Self> {
        let path = repository_root().join("target/services/env");
        let env_file_text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "{} is missing; run the benchmark with `make bench-…`, which starts the services",
                path.display()
            )
        })?;
        let read_port = |name: &str| {
            env_file_text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .with_context(|| format!("{} has no {name}", path.display()))
        };
        Ok(Self {
            postgres_port: read_port("POSTGRES_PORT")?,
            kafka_port: read_port("KAFKA_PORT")?,
            mosquitto_port: read_port("MOSQUITTO_PORT")?,
        })
    }

    /// Returns the environment variables of a connector that uses this database.
    pub fn postgres_env_vars(&self, database: &str) -> Vec<(String, String)> {
        env_vars(&[
            ("postgres.host", "127.0.0.1"),
            ("postgres.port", &self.postgres_port.to_string()),
            ("postgres.database", database),
            ("postgres.user", "cc"),
            ("postgres.password", "cc-secret"),
            ("postgres.tls", "disable"),
        ])
    }

    pub fn database_url(&self, database: &str) -> String {
        let port = self.postgres_port;
        format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable")
    }

    pub async fn connect(&self, database: &str) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.database_url(database)).await?)
    }

    /// Creates a migrated database with a random name, and returns the name.
    pub async fn create_database(&self) -> Result<String> {
        let database = format!("bench_{}", uuid::Uuid::new_v4().simple());
        self.execute(format!("CREATE DATABASE {database}")).await?;
        let config = load_config(self.postgres_env_vars(&database))?;
        cloud_connector::runtime::migrate(&config).await?;
        Ok(database)
    }

    pub async fn drop_database(&self, database: &str) -> Result<()> {
        self.execute(format!("DROP DATABASE {database} WITH (FORCE)"))
            .await
    }

    /// Makes PostgreSQL write all dirty pages to disk now. Otherwise PostgreSQL would write the
    /// pages during the measurement.
    pub async fn checkpoint(&self) -> Result<()> {
        self.execute("CHECKPOINT".to_owned()).await
    }

    async fn execute(&self, statement: String) -> Result<()> {
        let mut connection = self.connect("cc").await?;
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&mut connection)
            .await?;
        Ok(connection.close().await?)
    }
}

/// Converts settings to environment variables. Each setting is a pair of a configuration key and a
/// value.
pub fn env_vars(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let env_var_name =
        |key: &str| format!("CLOUD_CONNECTOR__{}", key.replace('.', "__").to_uppercase());
    settings
        .iter()
        .map(|(key, value)| (env_var_name(key), (*value).to_owned()))
        .collect()
}

pub fn load_config(env_vars: Vec<(String, String)>) -> Result<Config> {
    Ok(load_with_environment(&Overrides::default(), env_vars)?.config)
}

/// Returns the names of the selected parts of a benchmark, or all of `part_names` if `args` selects
/// none.
pub fn select_parts(args: Vec<String>, part_names: &[&str]) -> Result<Vec<String>> {
    for part in &args {
        let is_valid = part_names.contains(&part.as_str());
        ensure!(
            is_valid,
            "unknown part {part:?}; valid parts: {part_names:?}"
        );
    }
    if args.is_empty() {
        return Ok(part_names.iter().map(|name| (*name).to_owned()).collect());
    }
    Ok(args)
}

/// Returns the command-line arguments without flags, because Cargo adds flags such as `--bench`.
pub fn args_without_flags() -> Vec<String> {
    let args = std::env::args().skip(1);
    args.filter(|arg| !arg.starts_with("--")).collect()
}

pub fn repository_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
