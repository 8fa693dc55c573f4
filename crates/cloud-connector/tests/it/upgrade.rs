//! Tests that the current version can open a database of version 0.1.0, and that the upgrade
//! preserves every row.

use std::fmt::Write as _;
use std::str::FromStr as _;

use domain::{ClientId, OrgId};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use store::{ClientStatus, DeadLetterFilter, PageRequest, Repositories};
use store_sqlite::SqliteStore;

const SQLITE_DUMP: &str = include_str!("../fixtures/0.1.0/sqlite.sql");
const POSTGRES_DUMP: &str = include_str!("../fixtures/0.1.0/postgres.sql");

/// A table of version 0.1.0, with the old and new names of the table and its columns.
struct Table {
    old_name: &'static str,
    new_name: &'static str,
    /// Old and new name of each column.
    columns: &'static [(&'static str, &'static str)],
    /// Number of rows in the fixture.
    row_count: usize,
}

/// Builds a list of pairs that consist of the old name and the new name of a column. For a column
/// that was not renamed, the macro accepts a single name.
macro_rules! column_names {
    (@one $old:literal => $new:literal) => { ($old, $new) };
    (@one $same:literal) => { ($same, $same) };
    ($($old:literal $(=> $new:literal)?),* $(,)?) => {
        &[$(column_names!(@one $old $(=> $new)?)),*]
    };
}

const TABLES: &[Table] = &[
    Table {
        old_name: "connections",
        new_name: "connections",
        columns: column_names![
            "client_id",
            "org_id",
            "account",
            "dialect",
            "kind",
            "topic_prefix",
            "canonical_facts",
            "catalog_service_facts",
            "dispatchers",
            "tags",
            "client_name",
            "client_version",
            "message_id",
            "message_sent",
            "stale_timestamp",
            "tenant_lookup_timestamp",
            "tenant_lookup_failure_count",
            "last_seen" => "online_received_at",
            "alive_at" => "last_heartbeat_at",
            "left_at" => "offline_received_at",
            "queue_partition",
            "queue_offset",
            "can_be_announced" => "inventory_eligible",
            "claimed_until" => "lookup_claimed_until",
            "created_at",
            "updated_at",
        ],
        row_count: 8,
    },
    Table {
        old_name: "departed",
        new_name: "disconnected_clients",
        columns: column_names![
            "client_id",
            "org_id",
            "account",
            "dialect",
            "kind",
            "topic_prefix",
            "canonical_facts",
            "catalog_service_facts",
            "dispatchers",
            "tags",
            "client_name",
            "client_version",
            "message_id",
            "message_sent",
            "tenant_lookup_timestamp",
            "tenant_lookup_failure_count",
            "departed_at" => "disconnected_at",
            "queue_partition",
            "queue_offset",
        ],
        row_count: 5,
    },
    Table {
        old_name: "dead_letters",
        new_name: "dead_letters",
        columns: column_names![
            "client_id",
            "fingerprint",
            "topic",
            "payload",
            "size",
            "sha256",
            "reason",
            "detail",
            "times" => "occurrences",
            "first_received",
            "last_received",
            "replay_asked_at" => "replay_requested_at",
            "id",
        ],
        row_count: 4,
    },
    Table {
        old_name: "partition_epoch",
        new_name: "partition_epoch",
        columns: column_names!["queue", "partition", "epoch", "owner"],
        row_count: 2,
    },
];

/// Old and new names of the dead-letter reasons that the fixtures contain.
const RENAMED_DEAD_LETTER_REASONS: &[(&str, &str)] = &[
    ("'not_json'", "'invalid_json'"),
    ("'wrong_shape'", "'invalid_schema'"),
    ("'characters'", "'invalid_characters'"),
];

/// Returns a query that selects each row of a table as one line of quoted values. `quote_function`
/// is the name of the SQL function that quotes a value.
fn rows_query<'a>(
    table: &str,
    columns: impl Iterator<Item = &'a str>,
    quote_function: &str,
) -> String {
    let mut sql = "SELECT ''".to_owned();
    for column in columns {
        write!(sql, " || ' ' || {quote_function}({column})").unwrap();
    }
    write!(sql, " AS line FROM {table} ORDER BY line").unwrap();
    sql
}

impl Table {
    fn old_rows_query(&self, quote_function: &str) -> String {
        rows_query(
            self.old_name,
            self.columns.iter().map(|(old, _)| *old),
            quote_function,
        )
    }

    fn new_rows_query(&self, quote_function: &str) -> String {
        rows_query(
            self.new_name,
            self.columns.iter().map(|(_, new)| *new),
            quote_function,
        )
    }

    /// Checks that the upgrade preserved all rows, and renamed the dead-letter reasons.
    fn assert_rows_are_preserved(&self, rows_before: &[String], rows_after: &[String]) {
        let mut expected_rows: Vec<String> = rows_before
            .iter()
            .map(|line| {
                RENAMED_DEAD_LETTER_REASONS
                    .iter()
                    .fold(line.clone(), |line, (old, new)| line.replace(old, new))
            })
            .collect();
        expected_rows.sort();
        let mut found_rows = rows_after.to_vec();
        found_rows.sort();
        assert_eq!(
            rows_before.len(),
            self.row_count,
            "rows in the fixture: {}",
            self.old_name
        );
        assert_eq!(found_rows, expected_rows, "rows of {}", self.new_name);
    }
}

#[tokio::test]
async fn upgrade_of_a_sqlite_database_from_0_1_0_keeps_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud-connector.db");
    let options = SqliteConnectOptions::from_str(&format!("sqlite://{}", path.display()))
        .unwrap()
        .create_if_missing(true);
    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql(SQLITE_DUMP)
        .execute(&mut database)
        .await
        .unwrap();
    let mut rows_before = Vec::new();
    for table in TABLES {
        let sql = sqlx::AssertSqlSafe(table.old_rows_query("quote"));
        rows_before.push(
            sqlx::query_scalar(sql)
                .fetch_all(&mut database)
                .await
                .unwrap(),
        );
    }
    database.close().await.unwrap();

    let store = Repositories::new(SqliteStore::open(&path).await.unwrap());
    check_that_store_reads_the_rows(&store).await;
    store.maintenance.close().await;

    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    for (table, rows_before) in TABLES.iter().zip(&rows_before) {
        let sql = sqlx::AssertSqlSafe(table.new_rows_query("quote"));
        let rows_after: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&mut database)
            .await
            .unwrap();
        table.assert_rows_are_preserved(rows_before, &rows_after);
    }
}

#[tokio::test]
async fn upgrade_of_a_postgres_database_from_0_1_0_keeps_every_row_and_the_search_index() {
    use sqlx::PgConnection;
    use store_postgres::{PostgresStore, migrate};

    use test_support::services;

    let port = services::shared_services().await.postgres_port;
    let database_name = services::create_database(port).await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable");
    let mut database = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(POSTGRES_DUMP)
        .execute(&mut database)
        .await
        .unwrap();
    let search_rows_before: Vec<String> = sqlx::query_scalar(
        "SELECT concat_ws(' ', client_id, org_id, source, name, terms) FROM findable
         ORDER BY client_id",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    let mut rows_before = Vec::new();
    for table in TABLES {
        let sql = sqlx::AssertSqlSafe(table.old_rows_query("quote_nullable"));
        rows_before.push(
            sqlx::query_scalar(sql)
                .fetch_all(&mut database)
                .await
                .unwrap(),
        );
    }
    database.close().await.unwrap();

    let settings = services::postgres_config(port, &database_name);
    migrate(&settings).await.unwrap();
    let store = Repositories::new(PostgresStore::new(&settings));
    check_that_store_reads_the_rows(&store).await;

    let mut database = PgConnection::connect(&url).await.unwrap();
    for (table, rows_before) in TABLES.iter().zip(&rows_before) {
        let sql = sqlx::AssertSqlSafe(table.new_rows_query("quote_nullable"));
        let rows_after: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&mut database)
            .await
            .unwrap();
        table.assert_rows_are_preserved(rows_before, &rows_after);
    }
    let search_rows_after: Vec<String> = sqlx::query_scalar(
        "SELECT concat_ws(' ', client_id, org_id, content_hash, fqdn, term_hashes)
           FROM connection_search ORDER BY client_id",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(search_rows_after, search_rows_before);

    // The SQL functions compute the same terms and hashes that the database already stores. Therefore
    // every client stays searchable.
    let mismatches: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM connections AS c JOIN connection_search AS s USING (client_id)
          WHERE s.fqdn IS DISTINCT FROM search_fqdn(c.canonical_facts)
             OR s.term_hashes <> ARRAY(
                    SELECT hashtextextended(c.org_id || chr(31) || term, 0)
                      FROM search_terms(c.canonical_facts, c.dispatchers, c.tags) AS t (term)
                     WHERE term IS NOT NULL LIMIT 256)",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!(mismatches, 0);

    // The triggers update the renamed tables.
    let sum_query = "SELECT COALESCE(sum(delta), 0)::bigint FROM org_connection_deltas
                WHERE org_id = '10001'";
    assert_eq!(
        sqlx::query_scalar::<_, i64>(sum_query)
            .fetch_one(&mut database)
            .await
            .unwrap(),
        1
    );
    sqlx::query("DELETE FROM connections WHERE client_id = 'up-1'")
        .execute(&mut database)
        .await
        .unwrap();
    assert_eq!(
        sqlx::query_scalar::<_, i64>(sum_query)
            .fetch_one(&mut database)
            .await
            .unwrap(),
        0
    );
}

/// Checks that the store can read the rows that version 0.1.0 wrote.
async fn check_that_store_reads_the_rows(store: &Repositories) {
    store.maintenance.ping().await.unwrap();
    assert_eq!(
        store
            .maintenance
            .count_connections_with_tenant()
            .await
            .unwrap(),
        7
    );
    let tenantless = store
        .lookup_queue
        .list_tenantless_clients(10)
        .await
        .unwrap();
    assert_eq!(tenantless.len(), 1);
    assert_eq!(tenantless[0].client_id.as_str(), "lost-1");
    let dead_letters = store
        .dead_letters
        .list_dead_letters(&DeadLetterFilter::default(), 10)
        .await
        .unwrap();
    assert_eq!(dead_letters.len(), 4);
    check_presence_of_existing_rows(store).await;
}

/// Checks that existing clients have no history and no events, and that a connected client is connected since
/// its latest online message.
async fn check_presence_of_existing_rows(store: &Repositories) {
    let mut connected = 0;
    for org in ["10000", "10001", "10002"] {
        let org = OrgId::new(org).unwrap();
        let request = PageRequest::at_offset(0, 100);
        let page = store.connections.list_connections_for_org(&org, &request);
        for connection in page.await.unwrap().connections {
            assert_eq!(connection.connected_since, connection.online_received_at);
            let record = store.clients.find_client(&connection.client_id).await;
            let record = record.unwrap().unwrap();
            assert_eq!(record.status, ClientStatus::Connected);
            assert_eq!(record.connected_since, connection.online_received_at);
            assert!(record.last_seen >= connection.online_received_at);
            assert_eq!(record.reconnects, 0);
            check_history_is_empty(store, &connection.client_id).await;
            connected += 1;
        }
    }
    assert_eq!(connected, 7);
    for client_id in ["gone-handshake", "gone-status-0", "lost-2"] {
        let client_id = ClientId::new(client_id).unwrap();
        let record = store.clients.find_client(&client_id).await;
        let record = record.unwrap().unwrap();
        let ClientStatus::Disconnected { at, reason } = record.status else {
            panic!("{client_id} is connected");
        };
        assert_eq!(reason, None);
        assert_eq!(record.last_seen, at);
        assert!(record.connected_since < at);
        check_history_is_empty(store, &client_id).await;
    }
    store.events.sequence_events(1000).await.unwrap();
    assert_eq!(store.events.newest_position().await.unwrap(), 0);
}

async fn check_history_is_empty(store: &Repositories, client_id: &ClientId) {
    let history = store.clients.list_history(None, client_id, None, 10).await;
    assert_eq!(history.unwrap(), []);
}
