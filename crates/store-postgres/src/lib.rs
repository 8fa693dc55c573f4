//! The PostgreSQL implementation of the repositories, for distributed deployments.
//!
//! `store::sql` implements the repositories for [`PostgresStore`]. This crate contains the driver,
//! the schema, and the statements that only PostgreSQL accepts. A batch is written with set-based
//! statements: each statement has one array parameter per column.

mod answers;
#[cfg(feature = "bench-baseline")]
mod bench_baseline;
mod connect;
mod database;
mod driver;
mod error;
mod guarded_pool;
mod history;
mod lookup_results;
mod migrations;
mod reserved_connections;
mod search;
mod search_entry;
mod server_settings;
mod settings;
mod text_hash;
mod transaction;
mod upsert;

#[cfg(feature = "bench-baseline")]
pub use bench_baseline::record_without_search_index;
pub use connect::{ConnectPostgresError, ReservedFor, check_connection_and_schema, migrate};
pub use server_settings::check_server_settings;
pub use settings::{PostgresSettings, PostgresTls};

/// A pool of connections to PostgreSQL. The pool connects on first use, so the process can
/// start while the database is down.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: guarded_pool::GuardedPool,
    api_connections: reserved_connections::ReservedConnections,
    recorder_connections: reserved_connections::ReservedConnections,
    writes_events: bool,
    moved_events: std::sync::Arc<store::sql::MovedEvents>,
}

/// Returns the name and the text of every statement of this crate. A query whose text depends on
/// its conditions has several texts. Tests prepare all texts on the migrated schema.
#[must_use]
pub fn statements() -> Vec<(&'static str, String)> {
    let own_statements = [
        answers::STATEMENTS,
        connect::STATEMENTS,
        database::STATEMENTS,
        guarded_pool::STATEMENTS,
        history::STATEMENTS,
        lookup_results::STATEMENTS,
        search::STATEMENTS,
        server_settings::STATEMENTS,
        transaction::STATEMENTS,
        upsert::STATEMENTS,
    ];
    #[cfg(feature = "bench-baseline")]
    let own_statements = [&own_statements[..], &[bench_baseline::STATEMENTS]].concat();
    let mut statements = store::sql::texts(&database::SHARED_STATEMENTS, &own_statements);
    statements.extend(search::example_queries());
    statements
}
