//! The schema migrations, embedded in the program.
//!
//! The list is written by hand, because the macro `sqlx::migrate!` would compile the drivers of all
//! databases a second time, for the compiler. A test checks that the list is complete. Never change
//! a migration after it was released: sqlx compares its checksum with the database.

use std::sync::LazyLock;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Name and SQL of each file in the folder `migrations`.
const FILES: &[(&str, &str)] = &[
    (
        "0001_connections",
        include_str!("../migrations/0001_connections.sql"),
    ),
    (
        "0002_dialects_and_dead_letters",
        include_str!("../migrations/0002_dialects_and_dead_letters.sql"),
    ),
    (
        "0003_inventory",
        include_str!("../migrations/0003_inventory.sql"),
    ),
    (
        "0004_connection_search",
        include_str!("../migrations/0004_connection_search.sql"),
    ),
    (
        "0005_plain_names",
        include_str!("../migrations/0005_plain_names.sql"),
    ),
    (
        "0006_ingest_stamps",
        include_str!("../migrations/0006_ingest_stamps.sql"),
    ),
    (
        "0007_bounded_maintenance",
        include_str!("../migrations/0007_bounded_maintenance.sql"),
    ),
    (
        "0008_queue_topic",
        include_str!("../migrations/0008_queue_topic.sql"),
    ),
    (
        "0009_ingest_leases",
        include_str!("../migrations/0009_ingest_leases.sql"),
    ),
    (
        "0010_search_by_recorder",
        include_str!("../migrations/0010_search_by_recorder.sql"),
    ),
    (
        "0011_inventory_reports",
        include_str!("../migrations/0011_inventory_reports.sql"),
    ),
    (
        "0012_autovacuum",
        include_str!("../migrations/0012_autovacuum.sql"),
    ),
    (
        "0013_search_hash",
        include_str!("../migrations/0013_search_hash.sql"),
    ),
    (
        "0014_presence_history",
        include_str!("../migrations/0014_presence_history.sql"),
    ),
    ("0015_events", include_str!("../migrations/0015_events.sql")),
    (
        "0016_liveness_sweep",
        include_str!("../migrations/0016_liveness_sweep.sql"),
    ),
    (
        "0017_messages",
        include_str!("../migrations/0017_messages.sql"),
    ),
    (
        "0018_history_by_organization",
        include_str!("../migrations/0018_history_by_organization.sql"),
    ),
];

/// All migrations, in the order of their versions.
pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migrations = FILES.iter().map(|(name, sql)| {
        let (version, description) = store::sql::parse_migration_name(name);
        let sql = sql.into_sql_str();
        Migration::new(version, description, MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(migrations.collect())
});
