//! The Go implementation's table is adopted in place, and its pods keep working on it. Lines M of the
//! acceptance list.

use std::sync::Arc;
use std::time::Duration;

use cloud_connector::config::Postgres;
use cloud_connector::domain::{ClientId, OrgId, Timestamp};
use cloud_connector::store::postgres::{PostgresStore, migrate};
use cloud_connector::store::{
    ConnectionEnd, LookupReason, PageRequest, PresenceBatch, ReceivedAt, Store,
};
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::support::services;

const BEFORE_TENANCY: &str = include_str!("../../fixtures/go-schema-before-tenancy.sql");
const WITH_TENANCY: &str = include_str!("../../fixtures/go-schema-with-tenancy.sql");

/// Columns that the Go implementation knows, in both of its versions.
const GO_COLUMNS: &str = "SELECT id::bigint, coalesce(account, '(null)'), org_id, client_id,
    dispatchers::text, canonical_facts::text, coalesce(tags::text, '(null)'),
    coalesce(message_id, '(null)'), message_sent::text, stale_timestamp::text,
    created_at::text, updated_at::text FROM connections ORDER BY id";

/// A database in which the Go implementation has been.
struct Adopted {
    settings: Postgres,
    database: PgConnection,
    before: Vec<Vec<String>>,
}

impl Adopted {
    async fn from(fixture: &'static str) -> Self {
        let port = services::shared().await.postgres;
        let name = services::database(port).await;
        let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable");
        let mut database = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(fixture).execute(&mut database).await.unwrap();
        let before = go_rows(&mut database).await;
        let settings = services::postgres_settings(port, &name);
        migrate(&settings).await.unwrap();
        // What the connection prepared before names types that have changed.
        let database = PgConnection::connect(&url).await.unwrap();
        Self {
            settings,
            database,
            before,
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::new(&self.settings))
    }

    async fn text(&mut self, sql: &'static str) -> String {
        let found: Option<String> = sqlx::query_scalar(sql)
            .fetch_one(&mut self.database)
            .await
            .unwrap();
        found.unwrap_or_else(|| "(null)".to_owned())
    }
}

async fn go_rows(database: &mut PgConnection) -> Vec<Vec<String>> {
    let rows = sqlx::query(GO_COLUMNS).fetch_all(database).await.unwrap();
    let read = |row: &sqlx::postgres::PgRow| {
        let mut columns = vec![row.get::<i64, _>(0).to_string()];
        columns.extend((1..12).map(|at| row.get::<String, _>(at)));
        columns
    };
    rows.iter().map(read).collect()
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn due(now: Timestamp) -> LookupReason {
    LookupReason::MissingTenant {
        before: now,
        max_attempts: 30,
    }
}

#[tokio::test]
async fn m1_the_migration_gives_existing_rows_the_right_defaults_and_changes_nothing_else() {
    let mut adopted = Adopted::from(BEFORE_TENANCY).await;
    let after = go_rows(&mut adopted.database).await;
    assert_eq!(after.len(), 16);
    for row in &after {
        assert!(adopted.before.contains(row), "{row:?}");
    }
    let odd = "SELECT count(*)::text FROM connections WHERE tenant_lookup_timestamp IS NOT NULL
        OR tenant_lookup_failure_count <> 0 OR dialect <> 'status' OR kind <> 'host'
        OR NOT inventory_eligible OR online_received_at <> updated_at";
    assert_eq!(adopted.text(odd).await, "0");
    let mut adopted = Adopted::from(WITH_TENANCY).await;
    let after = go_rows(&mut adopted.database).await;
    assert_eq!(after.len(), 20);
    for row in &after {
        assert!(adopted.before.contains(row), "{row:?}");
    }
}

#[tokio::test]
async fn m2_the_tenantless_updater_picks_up_none_of_them() {
    let adopted = Adopted::from(BEFORE_TENANCY).await;
    let (store, now) = (adopted.store(), Timestamp::now());
    assert_eq!(store.count_due(due(now), now).await.unwrap(), 0);
    let until = now + Duration::from_mins(1);
    let claimed = store
        .claim_for_lookup(due(now), 100, now, until)
        .await
        .unwrap();
    assert!(claimed.is_empty());
    // Where the Go implementation had such rows, they are its rows, nulls and all.
    let adopted = Adopted::from(WITH_TENANCY).await;
    let claimed = adopted
        .store()
        .claim_for_lookup(due(now), 100, now, until)
        .await
        .unwrap();
    let names: Vec<&str> = claimed.iter().map(|due| due.client_id.as_str()).collect();
    assert_eq!(names, ["tenantless", "tenantless-nulls"]);
}

#[tokio::test]
async fn m3_the_go_implementations_table_is_adopted_in_place() {
    for (fixture, version) in [(BEFORE_TENANCY, "8"), (WITH_TENANCY, "10")] {
        let mut adopted = Adopted::from(fixture).await;
        let kept = "SELECT string_agg(version::text, ',') FROM schema_migrations";
        assert_eq!(adopted.text(kept).await, version);
        // Of those that share a client id, the newest is left.
        let twice = "SELECT string_agg(id::text, ',' ORDER BY id) FROM connections
            WHERE client_id LIKE 'twice-%'";
        assert_eq!(adopted.text(twice).await, "3,5,8,10");
        // Again, and two at once: nothing changes.
        let before = go_rows(&mut adopted.database).await;
        let (one, other) = tokio::join!(migrate(&adopted.settings), migrate(&adopted.settings));
        one.unwrap();
        other.unwrap();
        assert_eq!(go_rows(&mut adopted.database).await, before);
        // Awkward rows are read.
        let store = adopted.store();
        let found = store
            .find_for_org(&org("org-1"), &client("no-account"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.tenant.account, "");
        let listed = store
            .list_for_org(&org("org-1"), &PageRequest::page(0, 100))
            .await
            .unwrap();
        assert_eq!(listed.count, if version == "8" { 13 } else { 14 });
        store.close().await;
    }
}

#[tokio::test]
async fn an_adopted_row_leaves_and_comes_back_whatever_was_null_in_it() {
    let adopted = Adopted::from(WITH_TENANCY).await;
    let store = adopted.store();
    let now = Timestamp::now();
    let gone = ["no-account", "sql-null", "count-null", "tenantless-nulls"];
    let batch = PresenceBatch {
        departures: gone
            .iter()
            .map(|name| ConnectionEnd {
                client_id: client(name),
                heard: ReceivedAt {
                    at: now,
                    place: None,
                },
            })
            .collect(),
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], now).await.unwrap();
    let known = store.load_states(&gone.map(client)).await.unwrap();
    assert!(known.values().all(|known| known.departed.is_some()));
    assert_eq!(known.len(), 4);
}

/// Statements as the Go implementation has them: an update that tells what it updated, an insert
/// where that was nothing, a select by organisation and client, a delete by client.
#[tokio::test]
async fn the_go_implementations_statements_still_work() {
    let mut adopted = Adopted::from(WITH_TENANCY).await;
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
    let store = adopted.store();
    for name in ["plain", "go-new", "go-new"] {
        sqlx::query(upsert)
            .bind("org-9")
            .bind(name)
            .execute(&mut adopted.database)
            .await
            .unwrap();
        let found = store.find_for_org(&org("org-9"), &client(name)).await;
        let found = found.unwrap().expect(name);
        assert_eq!(found.reported.canonical_facts, serde_json::Value::Null);
    }
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM connections WHERE org_id = $1 AND client_id = $2")
            .bind("org-9")
            .bind("go-new")
            .fetch_one(&mut adopted.database)
            .await
            .unwrap();
    assert_eq!(count, 1);
    let gone = sqlx::query("DELETE FROM connections WHERE client_id = $1")
        .bind("go-new")
        .execute(&mut adopted.database)
        .await
        .unwrap();
    assert_eq!(gone.rows_affected(), 1);
    store.close().await;
}

#[tokio::test]
async fn a_table_that_is_nobodys_we_know_is_left_alone() {
    let port = services::shared().await.postgres;
    let name = services::database(port).await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable");
    let mut database = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE connections (id int, host text)")
        .execute(&mut database)
        .await
        .unwrap();
    let settings = services::postgres_settings(port, &name);
    let refused = migrate(&settings).await.unwrap_err().to_string();
    assert!(refused.contains("adopted"), "{refused}");
    let columns: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM information_schema.columns WHERE table_name = 'connections'",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!(columns, 2);
}
