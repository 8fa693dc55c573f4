//! Tests the migration of a database that the Go implementation has used. The migration keeps the
//! table `connections` with its rows, and the statements of the Go implementation still work.
//!
//! The names of some tests start with an item id of the tenancy acceptance list (M1 to M3). The
//! other items are tested in `crates/cloud-connector/tests/it/acceptance.rs`.

use std::time::Duration;

use domain::{ClientId, OrgId, Timestamp};
use sqlx::{Connection as _, PgConnection, Row as _};
use store::{ConnectionEnd, LookupReason, PageRequest, PresenceBatch, ReceivedAt, Repositories};
use store_postgres::{PostgresSettings, PostgresStore, migrate};

use test_support::services;

const GO_SCHEMA_BEFORE_TENANCY: &str = include_str!("../../fixtures/go-schema-before-tenancy.sql");
const GO_SCHEMA_WITH_TENANCY: &str = include_str!("../../fixtures/go-schema-with-tenancy.sql");

/// Query for the columns that exist in both versions of the Go schema: before tenancy and with
/// tenancy.
const SELECT_GO_COLUMNS: &str = "SELECT id::bigint, coalesce(account, '(null)'), org_id, client_id,
    dispatchers::text, canonical_facts::text, coalesce(tags::text, '(null)'),
    coalesce(message_id, '(null)'), message_sent::text, stale_timestamp::text,
    created_at::text, updated_at::text FROM connections ORDER BY id";

/// A database that was migrated from a schema of the Go implementation.
struct MigratedDatabase {
    settings: PostgresSettings,
    connection: PgConnection,
    /// Columns of all rows before the migration, as [`SELECT_GO_COLUMNS`] returns them.
    rows_before_migration: Vec<Vec<String>>,
}

impl MigratedDatabase {
    async fn from_fixture(fixture: &'static str) -> Self {
        let port = services::shared_services().await.postgres_port;
        let name = services::create_database(port).await;
        let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable");
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(fixture)
            .execute(&mut connection)
            .await
            .unwrap();
        let rows_before_migration = read_go_rows(&mut connection).await;
        let settings = services::postgres_config(port, &name);
        migrate(&settings).await.unwrap();
        // A new connection is needed, because the migration changed column types that the prepared
        // statements of the first connection use.
        let connection = PgConnection::connect(&url).await.unwrap();
        Self {
            settings,
            connection,
            rows_before_migration,
        }
    }

    fn open_store(&self) -> Repositories {
        Repositories::new(PostgresStore::new(&self.settings))
    }

    async fn select_text(&mut self, sql: &'static str) -> String {
        let text: Option<String> = sqlx::query_scalar(sql)
            .fetch_one(&mut self.connection)
            .await
            .unwrap();
        text.unwrap_or_else(|| "(null)".to_owned())
    }
}

/// Reads all rows with [`SELECT_GO_COLUMNS`]. Converts each value to text.
async fn read_go_rows(connection: &mut PgConnection) -> Vec<Vec<String>> {
    let rows = sqlx::query(SELECT_GO_COLUMNS)
        .fetch_all(connection)
        .await
        .unwrap();
    let column_texts = |row: &sqlx::postgres::PgRow| {
        let mut columns = vec![row.get::<i64, _>(0).to_string()];
        columns.extend((1..12).map(|index| row.get::<String, _>(index)));
        columns
    };
    rows.iter().map(column_texts).collect()
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn missing_tenant_reason(now: Timestamp) -> LookupReason {
    LookupReason::MissingTenant {
        looked_up_before: now,
        max_attempts: 30,
    }
}

#[tokio::test]
async fn m1_migration_sets_defaults_and_changes_no_other_column() {
    let mut database = MigratedDatabase::from_fixture(GO_SCHEMA_BEFORE_TENANCY).await;
    let rows = read_go_rows(&mut database.connection).await;
    assert_eq!(rows.len(), 16);
    for row in &rows {
        assert!(database.rows_before_migration.contains(row), "{row:?}");
    }
    let count_without_defaults =
        "SELECT count(*)::text FROM connections WHERE tenant_lookup_timestamp IS NOT NULL
        OR tenant_lookup_failure_count <> 0 OR dialect <> 'status' OR kind <> 'host'
        OR NOT inventory_eligible OR online_received_at <> updated_at";
    assert_eq!(database.select_text(count_without_defaults).await, "0");
    let mut database = MigratedDatabase::from_fixture(GO_SCHEMA_WITH_TENANCY).await;
    let rows = read_go_rows(&mut database.connection).await;
    assert_eq!(rows.len(), 20);
    for row in &rows {
        assert!(database.rows_before_migration.contains(row), "{row:?}");
    }
}

#[tokio::test]
async fn m2_migrated_rows_are_not_due_for_a_tenant_lookup() {
    let database = MigratedDatabase::from_fixture(GO_SCHEMA_BEFORE_TENANCY).await;
    let (store, now) = (database.open_store(), Timestamp::now());
    let due_count = store
        .lookup_queue
        .count_due_rows(missing_tenant_reason(now), now)
        .await
        .unwrap();
    assert_eq!(due_count, 0);
    let claim_until = now + Duration::from_mins(1);
    let claimed = store
        .lookup_queue
        .claim_for_lookup(missing_tenant_reason(now), 100, now, claim_until)
        .await
        .unwrap();
    assert!(claimed.is_empty());
    // Rows that the Go implementation stored as tenantless are due for a tenant lookup, even if the
    // rows contain nulls.
    let database = MigratedDatabase::from_fixture(GO_SCHEMA_WITH_TENANCY).await;
    let claimed = database
        .open_store()
        .lookup_queue
        .claim_for_lookup(missing_tenant_reason(now), 100, now, claim_until)
        .await
        .unwrap();
    let names: Vec<&str> = claimed.iter().map(|row| row.client_id.as_str()).collect();
    assert_eq!(names, ["tenantless", "tenantless-nulls"]);
}

#[tokio::test]
async fn m3_table_of_the_go_implementation_is_migrated_in_place() {
    for (fixture, go_version) in [
        (GO_SCHEMA_BEFORE_TENANCY, "8"),
        (GO_SCHEMA_WITH_TENANCY, "10"),
    ] {
        let mut database = MigratedDatabase::from_fixture(fixture).await;
        let go_versions = "SELECT string_agg(version::text, ',') FROM schema_migrations";
        assert_eq!(database.select_text(go_versions).await, go_version);
        // If several rows have the same client id, the migration keeps only the newest row.
        let kept_ids = "SELECT string_agg(id::text, ',' ORDER BY id) FROM connections
            WHERE client_id LIKE 'twice-%'";
        assert_eq!(database.select_text(kept_ids).await, "3,5,8,10");
        // Two more migrations at the same time change nothing.
        let rows = read_go_rows(&mut database.connection).await;
        let (first_result, second_result) =
            tokio::join!(migrate(&database.settings), migrate(&database.settings));
        first_result.unwrap();
        second_result.unwrap();
        assert_eq!(read_go_rows(&mut database.connection).await, rows);
        // The store can read rows that contain nulls.
        let store = database.open_store();
        let found = store
            .connections
            .find_connection_for_org(&org("org-1"), &client("no-account"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.tenant.account, "");
        let page = store
            .connections
            .list_connections_for_org(&org("org-1"), &PageRequest::at_offset(0, 100))
            .await
            .unwrap();
        assert_eq!(page.total_count, if go_version == "8" { 13 } else { 14 });
        store.maintenance.close().await;
    }
}

#[tokio::test]
async fn offline_message_is_recorded_for_migrated_rows_that_contain_nulls() {
    let database = MigratedDatabase::from_fixture(GO_SCHEMA_WITH_TENANCY).await;
    let store = database.open_store();
    let now = Timestamp::now();
    let names = ["no-account", "sql-null", "count-null", "tenantless-nulls"];
    let batch = PresenceBatch {
        connection_ends: names
            .iter()
            .map(|name| ConnectionEnd {
                client_id: client(name),
                received_at: ReceivedAt::from_time(now),
                reason: domain::OfflineReason::Client,
            })
            .collect(),
        ..PresenceBatch::default()
    };
    store.presence.record_batch(&batch, &[], now).await.unwrap();
    let states = store
        .presence
        .load_client_states(&names.map(client))
        .await
        .unwrap();
    assert!(states.values().all(|state| state.disconnect.is_some()));
    assert_eq!(states.len(), 4);
}

/// Runs the statements of the Go implementation: an upsert (UPDATE, then INSERT if no row was
/// updated), a SELECT by organization and client id, and a DELETE by client id.
#[tokio::test]
async fn statements_of_the_go_implementation_still_work() {
    let mut database = MigratedDatabase::from_fixture(GO_SCHEMA_WITH_TENANCY).await;
    let upsert = "WITH upsert AS (
            UPDATE connections SET org_id = $1, dispatchers = '{}', canonical_facts = 'null',
                   message_id = 'm', message_sent = now(), stale_timestamp = now(),
                   tenant_lookup_timestamp = NULL, tenant_lookup_failure_count = 0,
                   updated_at = now()
             WHERE client_id = $2 RETURNING *)
        INSERT INTO connections (account, org_id, client_id, dispatchers, canonical_facts, tags,
               message_id, message_sent, stale_timestamp, tenant_lookup_failure_count)
        SELECT NULL, $1, $2, '{}', 'null', NULL, 'm', now(), now(), NULL
         WHERE NOT EXISTS (SELECT * FROM upsert)";
    let store = database.open_store();
    for name in ["plain", "go-new", "go-new"] {
        sqlx::query(upsert)
            .bind("org-9")
            .bind(name)
            .execute(&mut database.connection)
            .await
            .unwrap();
        let found = store
            .connections
            .find_connection_for_org(&org("org-9"), &client(name))
            .await;
        let found = found.unwrap().expect(name);
        assert_eq!(found.info.canonical_facts, serde_json::Value::Null);
    }
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM connections WHERE org_id = $1 AND client_id = $2")
            .bind("org-9")
            .bind("go-new")
            .fetch_one(&mut database.connection)
            .await
            .unwrap();
    assert_eq!(count, 1);
    let delete_result = sqlx::query("DELETE FROM connections WHERE client_id = $1")
        .bind("go-new")
        .execute(&mut database.connection)
        .await
        .unwrap();
    assert_eq!(delete_result.rows_affected(), 1);
    store.maintenance.close().await;
}

#[tokio::test]
async fn migration_rejects_an_unrelated_table_and_does_not_change_it() {
    let port = services::shared_services().await.postgres_port;
    let name = services::create_database(port).await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE connections (id int, host text)")
        .execute(&mut connection)
        .await
        .unwrap();
    let settings = services::postgres_config(port, &name);
    let error = migrate(&settings).await.unwrap_err().to_string();
    assert!(error.contains("adopted"), "{error}");
    let columns: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM information_schema.columns WHERE table_name = 'connections'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(columns, 2);
}
