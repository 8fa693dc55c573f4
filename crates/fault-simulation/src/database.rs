//! The real SQLite store, in a file in memory. The simulation thread blocks during each call, so no
//! other thread ever runs at the same time as the simulation, and virtual time stands still.

use std::future::Future;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Row as _, SqlitePool};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use store_sqlite::SqliteStore;

/// File system in memory. SQLite needs a file, because the store has several connections and checks
/// that its files are not replaced.
const MEMORY_FILE_SYSTEM: &str = "/dev/shm";

/// The database of a schedule.
pub struct Database {
    /// `None` only while the value is dropped.
    runtime: Option<Runtime>,
    store: SqliteStore,
    /// Reads the tables for the checks.
    reader: SqlitePool,
    _folder: TempDir,
}

/// A row of `connections` or `disconnected_clients`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRow {
    pub client_id: String,
    pub is_connected: bool,
    pub org_id: String,
    pub account: String,
    pub message_id: Option<String>,
    /// Microseconds since 1970.
    pub message_sent: i64,
    pub facts: String,
    pub failed_lookups: i64,
    /// Partition and offset of the latest presence message.
    pub position: Option<(i64, i64)>,
}

/// A row of `dead_letters`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    pub id: i64,
    pub client_id: String,
    pub topic: String,
    pub sha256: String,
    pub reason: String,
}

const SELECT_CLIENTS: &str = "SELECT client_id, 1 AS is_connected, org_id, account, message_id, \
     message_sent, canonical_facts, tenant_lookup_failure_count, queue_partition, queue_offset \
     FROM connections UNION ALL SELECT client_id, 0, org_id, account, message_id, message_sent, \
     canonical_facts, tenant_lookup_failure_count, queue_partition, queue_offset \
     FROM disconnected_clients ORDER BY client_id";
const SELECT_DEAD_LETTERS: &str =
    "SELECT id, client_id, topic, sha256, reason FROM dead_letters ORDER BY id";

impl Database {
    /// Creates an empty database. Call this function outside of a runtime.
    pub fn create() -> Self {
        let folder = Path::new(MEMORY_FILE_SYSTEM);
        let parent = if folder.is_dir() {
            folder.to_owned()
        } else {
            std::env::temp_dir()
        };
        let prefix = format!("fault-simulation-{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let folder = folder.expect("create a folder for the database");
        let path: PathBuf = folder.path().join("simulation.db");
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("create the runtime of the database");
        let (store, reader) = runtime.block_on(async {
            let store = SqliteStore::open(&path).await.expect("open the database");
            let options = SqliteConnectOptions::new().filename(&path).read_only(true);
            let pool = SqlitePoolOptions::new().max_connections(1);
            let reader = pool.connect_with(options).await.expect("open the database");
            (store, reader)
        });
        Self {
            runtime: Some(runtime),
            store,
            reader,
            _folder: folder,
        }
    }

    /// Runs a call of the store. Blocks the thread until the call has finished.
    pub fn call<T, F>(&self, call: impl FnOnce(SqliteStore) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.block_on(call(self.store.clone()))
    }

    /// Reads the rows of all clients, in the order of the client ids.
    pub fn clients(&self) -> Vec<ClientRow> {
        let reader = self.reader.clone();
        let rows =
            self.block_on(async move { sqlx::query(SELECT_CLIENTS).fetch_all(&reader).await });
        let rows = rows.expect("read the clients");
        let rows = rows.iter().map(|row| {
            let partition: Option<i64> = row.get(8);
            ClientRow {
                client_id: row.get(0),
                is_connected: row.get::<i64, _>(1) == 1,
                org_id: row.get(2),
                account: row.get(3),
                message_id: row.get(4),
                message_sent: row.get(5),
                facts: row.get(6),
                failed_lookups: row.get(7),
                position: partition.zip(row.get(9)),
            }
        });
        rows.collect()
    }

    /// Reads all dead letters, in the order of their ids.
    pub fn dead_letters(&self) -> Vec<DeadLetterRow> {
        let reader = self.reader.clone();
        let query = async move { sqlx::query(SELECT_DEAD_LETTERS).fetch_all(&reader).await };
        let rows = self.block_on(query).expect("read the dead letters");
        let rows = rows.iter().map(|row| DeadLetterRow {
            id: row.get(0),
            client_id: row.get(1),
            topic: row.get(2),
            sha256: row.get(3),
            reason: row.get(4),
        });
        rows.collect()
    }

    /// Polls the future in this thread, so that each statement needs only the thread of its SQLite
    /// connection. Timers and tasks of the future belong to the runtime of the database, which has
    /// the real time.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().expect("the database is open");
        let _context = runtime.enter();
        futures::executor::block_on(future)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A runtime must not block at its end inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
