//! Opens and migrates the database: SQLite in the data folder, or PostgreSQL.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use futures::FutureExt as _;

use super::data_dir::{DataDir, database_path};
use super::file_check::FileCheck;
use super::roles::{Role, Roles};
use crate::config::Config;
use service::Health;
use store::{MaintenanceRepository as _, Repositories};
use store_postgres::{PostgresStore, ReservedFor};
use store_sqlite::{DatabaseFiles, SqliteStore};

/// Name of the database in the response of `/readiness`.
const COMPONENT: &str = "store";

/// The open database, and the data folder that contains it.
pub(super) struct Database {
    pub repositories: Repositories,
    /// The locked data folder. `None` if the database is PostgreSQL.
    pub data_dir: Option<DataDir>,
    /// The open files of the database. `None` if the database is PostgreSQL.
    files: Option<DatabaseFiles>,
}

impl Database {
    /// Opens the database. For SQLite, opens the database file, or creates it if it does not exist.
    ///
    /// For PostgreSQL, this function does not connect. The first query connects. Therefore the
    /// connector can start while PostgreSQL is unavailable.
    pub async fn open(config: &Config, roles: &Roles) -> Result<Self> {
        if !config.postgres.host.is_empty() {
            let reserved_for = ReservedFor {
                api: roles.contains(Role::Api),
                recorder: roles.contains(Role::Record),
            };
            let store = PostgresStore::with_reserved_connections(&config.postgres, reserved_for)
                .with_events(config.events.enabled);
            return Ok(Self {
                repositories: Repositories::new(store),
                data_dir: None,
                files: None,
            });
        }
        let data_dir = DataDir::open(&config.data.dir)?;
        let store = SqliteStore::open(&data_dir.database_path()).await?;
        let store = store.with_events(config.events.enabled);
        Ok(Self {
            files: Some(store.files().clone()),
            repositories: Repositories::new(store),
            data_dir: Some(data_dir),
        })
    }

    /// Returns the path of the data folder. Returns `None` if the database is PostgreSQL.
    pub fn data_dir_path(&self) -> Option<PathBuf> {
        let data_dir = self.data_dir.as_ref()?;
        Some(data_dir.path().to_owned())
    }

    /// Returns the check of the files in the data folder. Returns `None` if the database is
    /// PostgreSQL.
    pub fn file_check(&self) -> Option<FileCheck> {
        Some(FileCheck {
            database: self.files.clone()?,
            lock_file: self.data_dir.as_ref()?.lock_file().clone(),
        })
    }

    /// Adds the health check of the database.
    pub fn add_health_check(&self, health: &Health) {
        let maintenance = self.repositories.maintenance.clone();
        health.add_check(COMPONENT, move || {
            let maintenance = maintenance.clone();
            async move { maintenance.ping().await.map_err(|error| error.to_string()) }.boxed()
        });
    }
}

/// Applies pending database migrations. Returns the database's file path, or its host, port and
/// name.
///
/// # Errors
/// When the database cannot be opened or migrated, or another process uses the data folder.
pub async fn migrate(config: &Config) -> Result<String> {
    if config.postgres.host.is_empty() {
        let data_dir = DataDir::open(&config.data.dir)?;
        let store = SqliteStore::open(&data_dir.database_path()).await?;
        store.close().await;
        return Ok(data_dir.database_path().display().to_string());
    }
    let postgres = &config.postgres;
    store_postgres::migrate(postgres).await?;
    Ok(format!(
        "{}:{}/{}",
        postgres.host, postgres.port, postgres.database
    ))
}

/// Opens the database for a CLI command. A connector may use the database at the same time. Does
/// not create or migrate the database.
///
/// # Errors
/// When the database does not exist, is unreachable, or has pending migrations.
pub async fn open_store_for_cli(config: &Config) -> Result<Repositories> {
    if !config.postgres.host.is_empty() {
        let store = PostgresStore::new(&config.postgres).with_events(config.events.enabled);
        store.ping().await.context(
            "postgres: cannot connect to the database; check the [postgres] settings, or run \
             `cloud-connector doctor`",
        )?;
        return Ok(Repositories::new(store));
    }
    let database_file = database_path(&config.data.dir);
    if !database_file.exists() {
        bail!(
            "data.dir: no database found in {}; set --data-dir to the data folder of the connector",
            config.data.dir.display()
        );
    }
    if !store_sqlite::is_schema_current(&database_file).await? {
        bail!(
            "the database {} has pending migrations; start the connector, or run \
             `cloud-connector migrate`",
            database_file.display()
        );
    }
    let store = SqliteStore::open(&database_file).await?;
    Ok(Repositories::new(store.with_events(config.events.enabled)))
}
