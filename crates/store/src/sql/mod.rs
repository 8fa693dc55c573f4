//! The repositories of a SQL database, except for what differs between databases.
//!
//! A backend implements [`SqlDatabase`] for its pool of connections, [`SqlTransaction`] for its
//! transactions and [`ColumnReader`] for its rows. This module then implements the
//! repositories for it. What this module contains, once for all backends:
//!
//! - `statements`: statements that all databases accept, and their columns;
//! - `row`: the conversion of rows to Rust types;
//! - `presence`, `ingest_epochs`, `connections`, `clients`, `lookup_queue`, `dead_letters`, `maintenance`,
//!   `events`, `liveness`, `messages`, `idempotency`: the repositories;
//! - `batch`: the order of the steps of a batch, and the decision whether a batch is fenced.
//!
//! A backend contains its driver, its schema, and the statements that only its database accepts.

mod batch;
mod clients;
mod connections;
mod dead_letters;
mod events;
mod examples;
mod idempotency;
mod ingest_epochs;
mod liveness;
mod lookup_queue;
mod maintenance;
mod messages;
mod migrations;
mod moved_events;
mod presence;
mod query;
mod row;
mod statements;

use std::ops::ControlFlow;

use async_trait::async_trait;

use domain::{ClientId, OrgId, Tenant, Timestamp};

use crate::batch::PresenceBatch;
use crate::error::Result;
use crate::lookup_queue::LookupResult;
use crate::page::PageRequest;
use crate::partitions::PartitionLease;

pub use batch::{SqlTransaction, TenantColumns};
pub use clients::{SELECT_CONNECTED_CLIENTS, SELECT_DISCONNECTED_CLIENTS};
pub use events::EventOutboxStatements;
pub use examples::{example_filters, texts};
pub use liveness::LivenessStatements;
pub use lookup_queue::LookupColumns;
pub use migrations::parse_migration_name;
pub use moved_events::MovedEvents;
pub use query::{Parameter, Query, Statement};
pub use row::{
    ColumnReader, HEARTBEAT_STAMP_COLUMNS, KEEP_LATER_HEARTBEAT, LAST_SEEN, ONLINE_MESSAGE_COLUMNS,
    PRESENCE_COLUMNS, PRESENCE_STAMP_COLUMNS, REPLACE_ONLINE_MESSAGE, REPLACE_PRESENCE_COLUMNS,
    REPLACE_PRESENCE_STAMP, invalid_json, timestamp_from_micros,
};
pub use statements::{CONNECTION_COLUMNS, MESSAGE_CHANGE_COLUMNS, SharedStatements, SqlSyntax};

/// The connections that a statement uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Connections that can write.
    Write,
    /// Connections of the recorder, for reading. API queries cannot delay the recorder.
    Record,
    /// Connections for reading.
    Read,
    /// Connections for the short queries of the API.
    ApiRead,
}

/// Receives the rows of a query, one after the other. If it returns [`ControlFlow::Break`], the query
/// ends and the following rows are not read.
pub type RowVisitor<'a, Row> = &'a mut (dyn FnMut(Row) -> Result<ControlFlow<()>> + Send);

/// Rows of one page, and the number of rows on all pages.
#[derive(Debug, Clone)]
pub struct RowPage<Row> {
    /// Number of rows on all pages. 0 if the request needs no total count.
    pub total_count: u64,
    /// Rows of this page. A row whose `client_id` is null belongs to no client and is ignored.
    pub rows: Vec<Row>,
}

/// A pool of connections to a SQL database.
///
/// The first methods run statements. The other methods are the operations whose statements differ
/// between databases.
#[async_trait]
pub trait SqlDatabase: Send + Sync + 'static {
    /// A row of a result.
    type Row: ColumnReader;
    /// A transaction that writes a batch.
    type Transaction: SqlTransaction;

    /// Returns the statements that all databases accept, in the syntax of this database.
    fn statements(&self) -> &'static SharedStatements;

    /// Runs a query and returns all rows.
    async fn fetch_all(&self, access: Access, query: Query<'_>) -> Result<Vec<Self::Row>>;

    /// Runs a statement and returns the number of changed rows.
    async fn execute(&self, query: Query<'_>) -> Result<u64>;

    /// Runs a query that returns one row with the column `count`.
    async fn fetch_count(&self, access: Access, query: Query<'_>) -> Result<u64> {
        let rows = self.fetch_all(access, query).await?;
        rows.first().map_or(Ok(0), |row| row.count("count"))
    }

    /// Writes a batch with one statement, which is a transaction of its own. Returns false, and writes
    /// nothing, if the database does not support this for the batch, or if a lease is lost.
    async fn record_in_one_statement(
        &self,
        _batch: &PresenceBatch,
        _leases: &[PartitionLease],
        _now: Timestamp,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Returns whether transactions write events (`events.enabled`).
    fn writes_events(&self) -> bool;

    /// Starts a transaction that can write.
    async fn begin(&self) -> Result<Self::Transaction>;

    /// Returns the statements of the liveness sweep that differ between databases.
    fn liveness_statements(&self) -> &'static LivenessStatements;

    /// Returns the statement that issues an epoch for a connection of a session. Its parameters are
    /// the name of the session, and 0 if the broker had no stored session, otherwise 1. Its row has the
    /// columns `session` and `epoch`.
    fn next_ingest_epoch_statement(&self) -> Statement;

    /// Returns the statement that acquires or renews the lease of a session. Its parameters are the
    /// name of the session, the holder and the duration in seconds. It returns a row if the holder
    /// has the lease.
    fn hold_ingest_session_statement(&self) -> Statement;

    /// Returns the statement that moves new entries of the search index to the index. Returns `None` if
    /// the database has no such index.
    fn flush_search_index_statement(&self) -> Option<Statement>;

    /// Returns the statement that searches clients by id, `fqdn`, `insights_id` or
    /// `subscription_manager_id`, in the order of the client ids. Its parameters are the text and the
    /// maximum number of rows. Its rows have the columns of [`SELECT_CONNECTED_CLIENTS`]. A client with
    /// rows in both tables has only its row in `connections` in the result.
    fn search_clients_statement(&self) -> Statement;

    /// Returns the statement that returns the highest position of an event in the column `position`.
    fn newest_event_position_statement(&self) -> Statement;

    /// Returns the statements that give positions to events. Returns `None` if each event has a
    /// position when it is inserted.
    fn event_outbox_statements(&self) -> Option<&'static EventOutboxStatements>;

    /// Returns what this process remembers about the events that it has moved. Returns `None` if
    /// [`Self::event_outbox_statements`] returns `None`.
    fn moved_events(&self) -> Option<&MovedEvents> {
        None
    }

    /// Issues a higher epoch for each partition. The epoch is at least the Unix time in seconds, so
    /// a database that was restored from a backup does not issue an epoch twice. Each returned row
    /// has the columns `partition` and `epoch`.
    async fn next_epochs(
        &self,
        queue: &str,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<Self::Row>>;

    /// See [`PresenceRepository`](crate::PresenceRepository).
    async fn restore_tenants(&self, clients: &[(ClientId, Tenant)], now: Timestamp) -> Result<u64>;

    /// Runs a query and passes each row to `visit` as soon as it is read.
    async fn visit_rows(
        &self,
        access: Access,
        query: Query<'_>,
        visit: RowVisitor<'_, Self::Row>,
    ) -> Result<()>;

    /// Reads a page of an organization's connections, and passes each row to `visit`. Each row has
    /// the [`CONNECTION_COLUMNS`]. A row whose `client_id` is null belongs to no client and must be
    /// ignored. Returns the number of rows on all pages, or 0 if the request needs no total count.
    async fn visit_connections(
        &self,
        org: &OrgId,
        request: &PageRequest,
        visit: RowVisitor<'_, Self::Row>,
    ) -> Result<u64>;

    /// Reads a page of the clients of an organization. Each row has the columns `client_id`,
    /// `org_id` and `account`.
    async fn fetch_org_clients(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<RowPage<Self::Row>>;

    /// Reads a page of the clients of all organizations. Each row has the columns `client_id`,
    /// `org_id` and `account`.
    async fn fetch_all_clients(&self, offset: u64, limit: u64) -> Result<RowPage<Self::Row>>;

    /// See [`LookupQueueRepository`](crate::LookupQueueRepository).
    async fn save_lookup_results(&self, results: &[LookupResult], now: Timestamp) -> Result<u64>;

    /// See [`MaintenanceRepository`](crate::MaintenanceRepository).
    async fn delete_clients_disconnected_before(&self, time: Timestamp, limit: u32) -> Result<u64>;

    /// See [`MaintenanceRepository`](crate::MaintenanceRepository).
    async fn ping(&self) -> Result<()>;

    /// See [`MaintenanceRepository`](crate::MaintenanceRepository).
    async fn close(&self);
}

/// Runs a query that returns at most one row.
async fn fetch_optional<D: SqlDatabase>(
    database: &D,
    access: Access,
    query: Query<'_>,
) -> Result<Option<D::Row>> {
    Ok(database.fetch_all(access, query).await?.pop())
}
