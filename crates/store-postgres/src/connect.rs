//! Connection pool, TLS options and schema migrations of PostgreSQL.

use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::time::timeout;

use super::PostgresStore;
use super::driver::{self, pg_query};
use super::guarded_pool::{ConnectionGuard, GuardedConnection, GuardedPool, RECORDER_SETUP};
use super::migrations::MIGRATIONS;
use super::reserved_connections::{PING_AFTER_IDLE, ReservedConnections};
use super::{PostgresSettings, PostgresTls};
use service::settings::{ExposeSecret as _, PemSource};
use store::Result as StoreResult;
use store::sql::ColumnReader as _;

store::statements! {
    /// Disables the statement timeout. The migration waits for the advisory lock while another
    /// process migrates the schema, and this wait may take longer than the configured timeout.
    DISABLE_STATEMENT_TIMEOUT = "SET statement_timeout = 0";

    FIND_MIGRATIONS_TABLE = "SELECT to_regclass('_sqlx_migrations')::text AS table_name";

    APPLIED_VERSIONS = "SELECT version FROM _sqlx_migrations WHERE success";
}

/// PostgreSQL error code of an exceeded `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// The program cannot connect to PostgreSQL or cannot migrate the schema. Each error text contains
/// the fix.
#[derive(Debug, thiserror::Error)]
pub enum ConnectPostgresError {
    /// The server is unreachable or rejects the login.
    #[error("postgres: cannot connect to {address}: {problem}; {hint}")]
    Connect {
        /// Address of the database: host, port and database name.
        address: String,
        /// Error message of the server or the operating system.
        problem: String,
        /// How to fix the error.
        hint: &'static str,
    },
    /// A migration failed.
    #[error("postgres: cannot migrate the schema: {0}")]
    Migrate(String),
}

/// The tasks for which a process reserves connections.
#[derive(Debug, Clone, Copy)]
pub struct ReservedFor {
    /// Half of the connections are reserved for the short queries of API requests. A quarter if others
    /// are reserved for the recorder.
    pub api: bool,
    /// Up to three of the connections are reserved for the batches of the recorder.
    pub recorder: bool,
}

/// Maximum number of connections that are reserved for the recorder: two writers, and the writer for
/// the slow topic.
const MAX_RECORDER_CONNECTIONS: u32 = 3;

impl PostgresStore {
    /// Creates a pool that reserves connections for the API and for the recorder.
    #[must_use]
    pub fn new(settings: &PostgresSettings) -> Self {
        let reserved_for = ReservedFor {
            api: true,
            recorder: true,
        };
        Self::with_reserved_connections(settings, reserved_for)
    }

    /// Creates a pool. The pool connects when the first statement runs.
    #[must_use]
    pub fn with_reserved_connections(
        settings: &PostgresSettings,
        reserved_for: ReservedFor,
    ) -> Self {
        let max_connections = settings.max_connections;
        let (api_connections, recorder_connections) =
            reserved_connection_counts(max_connections, reserved_for);
        let guard = ConnectionGuard::new(settings);
        let pool_guard = guard.clone();
        let pool = PgPoolOptions::new()
            .max_connections(max_connections - api_connections - recorder_connections)
            .acquire_timeout(settings.acquire_timeout.get())
            .idle_timeout(Duration::from_mins(10))
            // The pool pings only connections that were idle. A ping before every query would
            // double the cost of most queries. The pool replaces a connection whose ping fails.
            .test_before_acquire(false)
            .before_acquire(move |connection, usage| {
                let guard = pool_guard.clone();
                Box::pin(async move {
                    let opened_at = Instant::now().checked_sub(usage.age);
                    if opened_at.is_some_and(|opened_at| !guard.is_trusted(opened_at)) {
                        return Ok(false);
                    }
                    if usage.idle_for >= PING_AFTER_IDLE {
                        guard.ping(connection).await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(connect_options(settings));
        let pool = GuardedPool::new(pool, guard);
        Self {
            api_connections: ReservedConnections::new(pool.clone(), api_connections, &[]),
            recorder_connections: ReservedConnections::new(
                pool.clone(),
                recorder_connections,
                &RECORDER_SETUP,
            ),
            pool,
            writes_events: true,
            moved_events: std::sync::Arc::default(),
        }
    }

    /// Sets whether the store writes events. The default is true.
    #[must_use]
    pub fn with_events(mut self, writes_events: bool) -> Self {
        self.writes_events = writes_events;
        self
    }
}

/// Returns the number of connections that are reserved for the API and for the recorder.
///
/// At least about half of the connections remain in the pool: transactions of the recorder, the sequencer
/// of events, jobs, lists and streams of the API use them.
fn reserved_connection_counts(max_connections: u32, reserved_for: ReservedFor) -> (u32, u32) {
    let ReservedFor { api, recorder } = reserved_for;
    let api_connections = match (api, recorder) {
        (false, _) => 0,
        (true, false) => max_connections / 2,
        (true, true) => max_connections / 4,
    };
    let recorder_connections = if recorder {
        (max_connections / 3).min(MAX_RECORDER_CONNECTIONS)
    } else {
        0
    };
    (api_connections, recorder_connections)
}

/// Keep-alive of the server: an idle session whose client is unreachable ends after 60 s.
const SERVER_KEEPALIVES: [(&str, &str); 3] = [
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
];

/// All queries of the program read few rows. Compiling a query, or starting processes for it, takes longer
/// than the query: at 4 million rows, a filter by one fact takes 22 ms instead of 0.3 ms.
const SHORT_QUERIES: [(&str, &str); 2] = [("jit", "off"), ("max_parallel_workers_per_gather", "0")];

fn connect_options(settings: &PostgresSettings) -> PgConnectOptions {
    let response_timeout = settings.response_timeout.get().as_millis().to_string();
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
        .options([
            (
                "statement_timeout",
                settings.statement_timeout.get().as_millis().to_string(),
            ),
            // A process that is unreachable in the middle of a transaction must not hold its locks
            // for longer than other processes wait.
            ("idle_in_transaction_session_timeout", response_timeout),
        ])
        .options(SERVER_KEEPALIVES)
        .options(SHORT_QUERIES)
        .log_slow_statements(log::LevelFilter::Debug, Duration::from_secs(5));
    if !settings.password.expose_secret().is_empty() {
        options = options.password(settings.password.expose_secret());
    }
    match &settings.ca {
        Some(PemSource::File(path)) => {
            options = options.ssl_root_cert(path);
        }
        Some(PemSource::Inline(text)) => {
            options = options.ssl_root_cert_from_pem(text.clone().into_bytes());
        }
        None => {}
    }
    options
}

/// Applies pending migrations under an advisory lock, so concurrent calls are safe.
///
/// # Errors
/// If the server is unreachable or a migration fails.
pub async fn migrate(settings: &PostgresSettings) -> Result<(), ConnectPostgresError> {
    let mut connection = connect(settings).await?;
    driver::count_changed_rows(
        &mut connection,
        pg_query(&DISABLE_STATEMENT_TIMEOUT.with([])),
    )
    .await
    .map_err(|error| ConnectPostgresError::Migrate(error.to_string()))?;
    let result = MIGRATIONS.run(&mut connection).await;
    result.map_err(|error| ConnectPostgresError::Migrate(migrate_error_text(&error)))?;
    let _ = connection.close().await;
    Ok(())
}

/// Opens a connection that belongs to no pool.
pub(super) async fn connect(
    settings: &PostgresSettings,
) -> Result<PgConnection, ConnectPostgresError> {
    let options = connect_options(settings);
    let connection = timeout(
        settings.response_timeout.get(),
        PgConnection::connect_with(&options),
    );
    let connection = connection.await.unwrap_or_else(|_| {
        let message = "the server accepts the connection but does not respond";
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message).into())
    });
    connection.map_err(|error| connect_error(settings, &error))
}

/// Connects once and checks the schema, for the `doctor` command.
///
/// # Errors
/// If the server is unreachable, or the database does not have the schema of this version.
pub async fn check_connection_and_schema(settings: &PostgresSettings) -> Result<(), String> {
    let connection = connect(settings).await;
    let connection = connection.map_err(|error| error.to_string())?;
    let mut connection = GuardedConnection::detached(connection, ConnectionGuard::new(settings));
    let versions = applied_versions(&mut connection).await;
    connection.close().await;
    let versions = versions.map_err(|error| error.to_string())?;
    check_all_migrations_applied(&versions)
}

/// Returns the versions of the migrations that the database has.
pub(super) async fn applied_versions(connection: &mut GuardedConnection) -> StoreResult<Vec<i64>> {
    let query = pg_query(&FIND_MIGRATIONS_TABLE.with([]));
    let rows = driver::fetch_all(&mut *connection, query).await?;
    let table_name = rows.first().map(|row| row.optional_text("table_name"));
    if table_name.transpose()?.flatten().is_none() {
        return Ok(Vec::new());
    }
    let mut versions = Vec::new();
    for row in driver::fetch_all(connection, pg_query(&APPLIED_VERSIONS.with([]))).await? {
        versions.extend(row.optional_integer("version")?);
    }
    Ok(versions)
}

/// Checks that the database has the schema of this version.
pub(super) fn check_all_migrations_applied(applied_versions: &[i64]) -> Result<(), String> {
    let missing_migration = MIGRATIONS
        .iter()
        .find(|migration| !applied_versions.contains(&migration.version));
    match missing_migration {
        None => Ok(()),
        Some(_) if applied_versions.is_empty() => {
            Err("the database has no schema yet; run `cloud-connector migrate`".to_owned())
        }
        Some(_) => {
            Err("the schema is older than this program; run `cloud-connector migrate`".to_owned())
        }
    }
}

fn migrate_error_text(error: &MigrateError) -> String {
    match error {
        MigrateError::VersionMissing(version) => format!(
            "the schema was created by a newer version of this program (schema {version}); run \
             that version"
        ),
        MigrateError::VersionMismatch(version) => format!(
            "migration {version} was applied by a development version with different content; \
             create a new database"
        ),
        MigrateError::Execute(sqlx::Error::Database(error))
        | MigrateError::ExecuteMigration(sqlx::Error::Database(error), _)
            if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) =>
        {
            "another transaction holds a lock on a table; nothing was changed; run \
             `cloud-connector migrate` again"
                .to_owned()
        }
        error => error.to_string(),
    }
}

fn connect_error(settings: &PostgresSettings, error: &sqlx::Error) -> ConnectPostgresError {
    let is_tls_error =
        matches!(error, sqlx::Error::Tls(_)) || error.to_string().contains("certificate");
    let hint = match error {
        _ if is_tls_error => {
            "check postgres.tls, and that postgres.ca contains the CA of the server certificate"
        }
        sqlx::Error::Database(database) => match database.code().as_deref() {
            Some("28P01" | "28000") => "check postgres.user and postgres.password",
            Some("3D000") => "check postgres.database, or create the database with `createdb`",
            _ => "see the log of the server",
        },
        _ => "check postgres.host and postgres.port, and that the server is running",
    };
    ConnectPostgresError::Connect {
        address: format!("{}:{}/{}", settings.host, settings.port, settings.database),
        problem: match error {
            sqlx::Error::Database(database) => database.message().to_owned(),
            error => error.to_string(),
        },
        hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_half_of_the_connections_stay_in_the_pool() {
        let remaining = |max_connections, api, recorder| {
            let reserved_for = ReservedFor { api, recorder };
            let (api, recorder) = reserved_connection_counts(max_connections, reserved_for);
            max_connections - api - recorder
        };
        assert_eq!(remaining(10, true, true), 5);
        assert_eq!(remaining(10, true, false), 5);
        assert_eq!(remaining(10, false, true), 7);
        assert_eq!(remaining(10, false, false), 10);
        for max_connections in 1..100 {
            let remaining = remaining(max_connections, true, true);
            assert!(remaining * 5 >= max_connections * 2, "{max_connections}");
        }
    }
}
