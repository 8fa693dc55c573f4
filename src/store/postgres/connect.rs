//! Connecting, and bringing the schema up to date.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};

use super::PostgresStore;
use super::reserved_connections::{ASKED_AFTER, ReservedConnections};
use crate::config::{Pem, Postgres, PostgresTls};
use crate::store::StoreError;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// PostgreSQL cannot be used. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectPostgresError {
    /// It cannot be reached, or does not let us in.
    #[error("postgres: cannot connect to {target}: {problem}; {cure}")]
    Connect {
        /// Host, port and database.
        target: String,
        /// What the server or the system says.
        problem: String,
        /// What to look at.
        cure: &'static str,
    },
    /// A migration failed.
    #[error("postgres: cannot bring the schema up to date: {0}")]
    Migrate(String),
}

impl PostgresStore {
    /// Prepares a pool. Connects when it is first asked something.
    #[must_use]
    pub fn new(settings: &Postgres) -> Self {
        Self::keeping(settings, 0)
    }

    /// As [`PostgresStore::new`], for a process that serves callers: half of the connections are kept for
    /// their short questions.
    #[must_use]
    pub fn for_callers(settings: &Postgres) -> Self {
        Self::keeping(settings, settings.max_connections / 2)
    }

    fn keeping(settings: &Postgres, kept: u32) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections - kept)
            .acquire_timeout(settings.acquire_timeout.get())
            .idle_timeout(Duration::from_mins(10))
            // A connection that died with the server is noticed here and replaced. One that was just
            // used is not asked: that would double what most questions cost.
            .test_before_acquire(false)
            .before_acquire(|connection, used| {
                Box::pin(async move {
                    if used.idle_for >= ASKED_AFTER {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options(settings));
        let within = settings.acquire_timeout.get();
        Self {
            readers: ReservedConnections::new(pool.clone(), kept, within),
            pool,
        }
    }
}

fn options(settings: &Postgres) -> PgConnectOptions {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&settings.host)
        .port(settings.port)
        .database(&settings.database)
        .username(&settings.user)
        .ssl_mode(match settings.tls {
            PostgresTls::Disable => PgSslMode::Disable,
            PostgresTls::Require => PgSslMode::Require,
            PostgresTls::VerifyFull => PgSslMode::VerifyFull,
        })
        .application_name("cloud-connector")
        .options([(
            "statement_timeout",
            settings.statement_timeout.get().as_millis().to_string(),
        )])
        .log_slow_statements(log::LevelFilter::Debug, Duration::from_secs(5));
    if !settings.password.expose().is_empty() {
        options = options.password(settings.password.expose());
    }
    match &settings.ca {
        Some(Pem::File(path)) => {
            options = options.ssl_root_cert(path);
        }
        Some(Pem::Text(text)) => {
            options = options.ssl_root_cert_from_pem(text.clone().into_bytes());
        }
        None => {}
    }
    options
}

/// Brings the schema up to date, under a lock: several at once are safe.
///
/// # Errors
/// When it cannot be reached, or a migration fails.
pub async fn migrate(settings: &Postgres) -> Result<(), ConnectPostgresError> {
    let mut connection = PgConnection::connect_with(&options(settings))
        .await
        .map_err(|error| sort(settings, &error))?;
    // Waiting for another instance that brings a large table up to date takes longer than any
    // statement of ours may.
    sqlx::query("SET statement_timeout = 0")
        .execute(&mut connection)
        .await
        .map_err(|error| ConnectPostgresError::Migrate(error.to_string()))?;
    MIGRATIONS
        .run(&mut connection)
        .await
        .map_err(|error| ConnectPostgresError::Migrate(explain(&error)))?;
    let _ = connection.close().await;
    Ok(())
}

/// Connects once and looks at the schema, for `doctor`.
///
/// # Errors
/// When it cannot be reached, or the schema is not current.
pub async fn probe(settings: &Postgres) -> Result<(), String> {
    let connection = PgConnection::connect_with(&options(settings)).await;
    let mut connection = connection.map_err(|error| sort(settings, &error).to_string())?;
    let applied = applied(&mut connection).await;
    let _ = connection.close().await;
    let applied = applied.map_err(|error| error.to_string())?;
    compare(&applied)
}

pub(super) async fn check_schema(pool: &PgPool) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await?;
    let applied = applied(&mut connection).await?;
    compare(&applied).map_err(StoreError::Schema)
}

async fn applied(connection: &mut PgConnection) -> Result<Vec<i64>, sqlx::Error> {
    let made: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !made {
        return Ok(Vec::new());
    }
    sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success")
        .fetch_all(connection)
        .await
}

fn compare(applied: &[i64]) -> Result<(), String> {
    let missing = MIGRATIONS
        .iter()
        .find(|migration| !applied.contains(&migration.version));
    match missing {
        None => Ok(()),
        Some(_) if applied.is_empty() => {
            Err("the database has no schema yet; run `cloud-connector migrate`".to_owned())
        }
        Some(_) => {
            Err("the schema is older than this program; run `cloud-connector migrate`".to_owned())
        }
    }
}

fn explain(error: &MigrateError) -> String {
    match error {
        MigrateError::VersionMissing(version) => format!(
            "it was made by a newer version of this program (schema {version}); run that version"
        ),
        MigrateError::VersionMismatch(version) => format!(
            "migration {version} was applied in another form, by a development version; make a new database"
        ),
        MigrateError::Execute(sqlx::Error::Database(error))
        | MigrateError::ExecuteMigration(sqlx::Error::Database(error), _)
            if error.code().as_deref() == Some("55P03") =>
        {
            "somebody holds the table and nothing was changed; run it again".to_owned()
        }
        error => error.to_string(),
    }
}

fn sort(settings: &Postgres, error: &sqlx::Error) -> ConnectPostgresError {
    let is_tls = matches!(error, sqlx::Error::Tls(_)) || error.to_string().contains("certificate");
    let cure = match error {
        _ if is_tls => {
            "check postgres.tls, and that postgres.ca is the authority of the server's certificate"
        }
        sqlx::Error::Database(database) => match database.code().as_deref() {
            Some("28P01" | "28000") => "check postgres.user and postgres.password",
            Some("3D000") => "check postgres.database, or make it with `createdb`",
            _ => "see the server's log",
        },
        _ => "check postgres.host and postgres.port, and that the server runs",
    };
    ConnectPostgresError::Connect {
        target: format!("{}:{}/{}", settings.host, settings.port, settings.database),
        problem: match error {
            sqlx::Error::Database(database) => database.message().to_owned(),
            error => error.to_string(),
        },
        cure,
    }
}
