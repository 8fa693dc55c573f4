//! A database written by version 0.1.0 opens in the current version with every row intact.

use std::fmt::Write as _;
use std::str::FromStr as _;

use cloud_connector::store::sqlite::SqliteStore;
use cloud_connector::store::{DeadLetterFilter, Store};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};

const SQLITE_DUMP: &str = include_str!("../fixtures/0.1.0/sqlite.sql");
#[cfg(feature = "external-services")]
const POSTGRES_DUMP: &str = include_str!("../fixtures/0.1.0/postgres.sql");

/// A table of version 0.1.0: its name and columns then and now. Columns without a new name are
/// listed once.
struct Table {
    old_name: &'static str,
    name: &'static str,
    columns: &'static [(&'static str, &'static str)],
    rows: usize,
}

macro_rules! columns {
    (@one $old:literal => $new:literal) => { ($old, $new) };
    (@one $same:literal) => { ($same, $same) };
    ($($old:literal $(=> $new:literal)?),* $(,)?) => {
        &[$(columns!(@one $old $(=> $new)?)),*]
    };
}

const TABLES: &[Table] = &[
    Table {
        old_name: "connections",
        name: "connections",
        columns: columns![
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
        rows: 8,
    },
    Table {
        old_name: "departed",
        name: "disconnected_clients",
        columns: columns![
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
        rows: 5,
    },
    Table {
        old_name: "dead_letters",
        name: "dead_letters",
        columns: columns![
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
        rows: 4,
    },
    Table {
        old_name: "partition_epoch",
        name: "partition_epoch",
        columns: columns!["queue", "partition", "epoch", "owner"],
        rows: 2,
    },
];

/// The reasons of dead letters in version 0.1.0 that the fixtures contain, and their present names.
const REASONS: &[(&str, &str)] = &[
    ("'not_json'", "'invalid_json'"),
    ("'wrong_shape'", "'invalid_schema'"),
    ("'characters'", "'invalid_characters'"),
];

/// Selects each row of a table as one line of quoted values. `quote` is the database's quoting
/// function.
fn select_rows<'a>(table: &str, columns: impl Iterator<Item = &'a str>, quote: &str) -> String {
    let mut sql = "SELECT ''".to_owned();
    for column in columns {
        write!(sql, " || ' ' || {quote}({column})").unwrap();
    }
    write!(sql, " AS line FROM {table} ORDER BY line").unwrap();
    sql
}

impl Table {
    fn select_old(&self, quote: &str) -> String {
        select_rows(
            self.old_name,
            self.columns.iter().map(|(old, _)| *old),
            quote,
        )
    }

    fn select_new(&self, quote: &str) -> String {
        select_rows(self.name, self.columns.iter().map(|(_, new)| *new), quote)
    }

    /// Compares the rows before and after the upgrade.
    fn check(&self, before: &[String], after: &[String]) {
        let mut expected: Vec<String> = before
            .iter()
            .map(|line| {
                REASONS
                    .iter()
                    .fold(line.clone(), |line, (old, new)| line.replace(old, new))
            })
            .collect();
        expected.sort();
        let mut found = after.to_vec();
        found.sort();
        assert_eq!(
            before.len(),
            self.rows,
            "rows in the fixture: {}",
            self.old_name
        );
        assert_eq!(found, expected, "rows of {}", self.name);
    }
}

#[tokio::test]
async fn sqlite_database_of_0_1_0_keeps_every_row() {
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
    let mut before = Vec::new();
    for table in TABLES {
        let sql = sqlx::AssertSqlSafe(table.select_old("quote"));
        before.push(
            sqlx::query_scalar(sql)
                .fetch_all(&mut database)
                .await
                .unwrap(),
        );
    }
    database.close().await.unwrap();

    let store = SqliteStore::open(&path).await.unwrap();
    check_store(&store).await;
    store.close().await;

    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    for (table, before) in TABLES.iter().zip(&before) {
        let sql = sqlx::AssertSqlSafe(table.select_new("quote"));
        let after: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&mut database)
            .await
            .unwrap();
        table.check(before, &after);
    }
}

#[cfg(feature = "external-services")]
#[tokio::test]
async fn postgres_database_of_0_1_0_keeps_every_row_and_its_search_index() {
    use cloud_connector::store::postgres::{PostgresStore, migrate};
    use sqlx::PgConnection;

    use crate::support::services;

    let port = services::shared_services().await.postgres_port;
    let name = services::create_database(port).await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable");
    let mut database = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(POSTGRES_DUMP)
        .execute(&mut database)
        .await
        .unwrap();
    let search_before: Vec<String> = sqlx::query_scalar(
        "SELECT concat_ws(' ', client_id, org_id, source, name, terms) FROM findable
         ORDER BY client_id",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    let mut before = Vec::new();
    for table in TABLES {
        let sql = sqlx::AssertSqlSafe(table.select_old("quote_nullable"));
        before.push(
            sqlx::query_scalar(sql)
                .fetch_all(&mut database)
                .await
                .unwrap(),
        );
    }
    database.close().await.unwrap();

    let settings = services::postgres_config(port, &name);
    migrate(&settings).await.unwrap();
    let store = PostgresStore::new(&settings);
    check_store(&store).await;

    let mut database = PgConnection::connect(&url).await.unwrap();
    for (table, before) in TABLES.iter().zip(&before) {
        let sql = sqlx::AssertSqlSafe(table.select_new("quote_nullable"));
        let after: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&mut database)
            .await
            .unwrap();
        table.check(before, &after);
    }
    let search_after: Vec<String> = sqlx::query_scalar(
        "SELECT concat_ws(' ', client_id, org_id, content_hash, fqdn, term_hashes)
           FROM connection_search ORDER BY client_id",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(search_after, search_before);

    // The renamed functions compute the stored hashes, so no row is rewritten after the upgrade and
    // every client stays searchable.
    let mismatches: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM connections AS c JOIN connection_search AS s USING (client_id)
          WHERE s.content_hash <> search_content_hash(
                    c.org_id, c.canonical_facts, c.dispatchers, c.tags)
             OR s.fqdn IS DISTINCT FROM search_fqdn(c.canonical_facts)
             OR s.term_hashes <> ARRAY(
                    SELECT hashtextextended(c.org_id || chr(31) || term, 0)
                      FROM search_terms(c.canonical_facts, c.dispatchers, c.tags) AS t (term)
                     WHERE term IS NOT NULL LIMIT 256)",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!(mismatches, 0);

    // The triggers maintain the renamed tables.
    let sum = "SELECT COALESCE(sum(delta), 0)::bigint FROM org_connection_deltas
                WHERE org_id = '10001'";
    assert_eq!(
        sqlx::query_scalar::<_, i64>(sum)
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
        sqlx::query_scalar::<_, i64>(sum)
            .fetch_one(&mut database)
            .await
            .unwrap(),
        0
    );
}

/// The store reads what the previous version wrote.
async fn check_store(store: &dyn Store) {
    store.ping().await.unwrap();
    assert_eq!(store.count_with_tenant().await.unwrap(), 7);
    let tenantless = store.list_tenantless(10).await.unwrap();
    assert_eq!(tenantless.len(), 1);
    assert_eq!(tenantless[0].client_id.as_str(), "lost-1");
    let dead_letters = store
        .list_dead_letters(&DeadLetterFilter::default(), 10)
        .await
        .unwrap();
    assert_eq!(dead_letters.len(), 4);
}
