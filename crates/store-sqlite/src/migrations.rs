//! The schema migrations, embedded in the program.
//!
//! The list is written by hand, because the macro `sqlx::migrate!` would compile the drivers of all
//! databases a second time, for the compiler. Never change a migration after it was released: sqlx
//! compares its checksum with the database.

use std::sync::LazyLock;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Version, description and SQL of each migration.
const FILES: [(i64, &str, &str); 5] = [
    (
        1,
        "connections",
        include_str!("../migrations/0001_connections.sql"),
    ),
    (
        2,
        "partition epoch",
        include_str!("../migrations/0002_partition_epoch.sql"),
    ),
    (
        3,
        "dialects and dead letters",
        include_str!("../migrations/0003_dialects_and_dead_letters.sql"),
    ),
    (
        4,
        "inventory",
        include_str!("../migrations/0004_inventory.sql"),
    ),
    (
        5,
        "plain names",
        include_str!("../migrations/0005_plain_names.sql"),
    ),
];

/// All migrations, in the order of their versions.
pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migrations = FILES.map(|(version, description, sql)| {
        Migration::new(
            version,
            description.into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            false,
        )
    });
    Migrator::with_migrations(migrations.to_vec())
});
