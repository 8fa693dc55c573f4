//! A client that is marked as disconnected, or deleted by retention, while its online message is recorded.

use std::time::Duration;

use ::time::OffsetDateTime;
use domain::{ClientId, ClientInfo, ClientKind, OrgId, Tenant, Timestamp};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::{
    ConnectionEnd, ConnectionUpsert, PresenceBatch, PresenceColumns, PresenceRepository as _,
    ReceivedAt, ReplacedRow, TenantChange, WriteOutcome,
};
use store_postgres::PostgresStore;
use test_support::services;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn client() -> ClientId {
    ClientId::new("client").unwrap()
}

fn online_batch(second: i64, replaced: ReplacedRow) -> PresenceBatch {
    PresenceBatch {
        upserts: vec![ConnectionUpsert {
            client_id: client(),
            dialect: protocol::status::NAME,
            kind: ClientKind::Host,
            topic_prefix: "redhat/insights".into(),
            info: ClientInfo::default(),
            message_id: None,
            message_sent_at: time(second),
            received_at: ReceivedAt::from_time(time(second)),
            last_heartbeat_at: None,
            tenant: TenantChange::Found(Tenant {
                org_id: OrgId::new("10001").unwrap(),
                account: String::new(),
            }),
            inventory_eligible: false,
            reported_to_inventory_at: None,
            replaced,
            presence: PresenceColumns::default(),
        }],
        ..PresenceBatch::default()
    }
}

fn offline_batch(second: i64) -> PresenceBatch {
    PresenceBatch {
        connection_ends: vec![ConnectionEnd {
            client_id: client(),
            received_at: ReceivedAt::from_time(time(second)),
            reason: domain::OfflineReason::Client,
        }],
        ..PresenceBatch::default()
    }
}

/// Moves the client to `disconnected_clients`, as the API does.
const DISCONNECT: &str = "
    WITH ended AS (DELETE FROM connections RETURNING *)
    INSERT INTO disconnected_clients (client_id, org_id, account, tags, canonical_facts, dialect,
           kind, topic_prefix, catalog_service_facts, dispatchers, client_name, client_version,
           message_sent, tenant_lookup_failure_count, disconnected_at)
    SELECT client_id, org_id, account, tags, canonical_facts, dialect, kind, topic_prefix,
           catalog_service_facts, dispatchers, client_name, client_version, message_sent, 0, now()
      FROM ended";

#[tokio::test]
async fn client_that_is_disconnected_while_its_online_message_is_recorded_is_a_conflict() {
    let port = services::shared_services().await.postgres_port;
    let database = services::create_database(port).await;
    let settings = services::postgres_config(port, &database);
    store_postgres::migrate(&settings).await.unwrap();
    let store = PostgresStore::new(&settings);
    let record = async |batch: &PresenceBatch, second: i64| {
        let outcome = store.record_batch(batch, &[], time(second)).await;
        assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    };
    record(&online_batch(1, ReplacedRow::Absent), 1).await;
    let states = store.load_client_states(&[client()]).await.unwrap();
    let version = states[&client()].connection.as_ref().unwrap().version;

    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let moved = sqlx::query(DISCONNECT).execute(&mut *transaction).await;
    assert_eq!(moved.unwrap().rows_affected(), 1);
    let batch = online_batch(2, ReplacedRow::Version(version));
    let (outcome, ()) = tokio::join!(store.record_batch(&batch, &[], time(2)), async {
        wait_until_blocked(&url).await;
        transaction.commit().await.unwrap();
    });
    assert_eq!(outcome.unwrap(), WriteOutcome::Conflict);

    // The recorder loads the state again.
    let states = store.load_client_states(&[client()]).await.unwrap();
    assert_eq!(states[&client()].connection, None);
    record(&online_batch(2, ReplacedRow::Absent), 2).await;
    let states = store.load_client_states(&[client()]).await.unwrap();
    let connected = states[&client()].connection.as_ref().unwrap();
    assert_eq!(connected.message_sent_at, time(2));
    record(&offline_batch(3), 3).await;
    let states = store.load_client_states(&[client()]).await.unwrap();
    assert_eq!(states[&client()].connection, None);
    let disconnect = states[&client()].disconnect.as_ref().unwrap();
    assert_eq!(disconnect.received_at.time, time(3));
    record(&online_batch(4, ReplacedRow::Absent), 4).await;
    let states = store.load_client_states(&[client()]).await.unwrap();
    assert_eq!(states[&client()].disconnect, None);
}

#[tokio::test]
async fn client_that_retention_deletes_while_it_reconnects_has_a_search_row_after_its_next_message()
{
    let port = services::shared_services().await.postgres_port;
    let database = services::create_database(port).await;
    let settings = services::postgres_config(port, &database);
    store_postgres::migrate(&settings).await.unwrap();
    let store = PostgresStore::new(&settings);
    let record = async |batch: &PresenceBatch, second: i64| {
        let outcome = store.record_batch(batch, &[], time(second)).await;
        assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    };
    record(&online_batch(1, ReplacedRow::Absent), 1).await;
    record(&offline_batch(2), 2).await;

    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let statements = store_postgres::statements();
    let delete = statements
        .iter()
        .find(|(name, _)| *name == "DELETE_CLIENTS_DISCONNECTED_BEFORE");
    let mut transaction = connection.begin().await.unwrap();
    let deleted: i64 = sqlx::query_scalar(AssertSqlSafe(delete.unwrap().1.clone()))
        .bind(OffsetDateTime::now_utc())
        .bind(10_i64)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(deleted, 1);
    let reconnect = online_batch(3, ReplacedRow::Absent);
    let (outcome, ()) = tokio::join!(store.record_batch(&reconnect, &[], time(3)), async {
        wait_until_blocked(&url).await;
        transaction.commit().await.unwrap();
    });
    assert_eq!(outcome.unwrap(), WriteOutcome::Committed);

    let states = store.load_client_states(&[client()]).await.unwrap();
    let version = states[&client()].connection.as_ref().unwrap().version;
    let next_message = online_batch(4, ReplacedRow::Version(version));
    record(&next_message, 4).await;
    let search_rows: i64 = sqlx::query_scalar("SELECT count(*) FROM connection_search")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(search_rows, 1);
}

/// Waits until a session of the database waits for a lock.
async fn wait_until_blocked(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let blocked = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..500 {
        let count: i64 = sqlx::query_scalar(blocked)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        if count > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no session waits for a lock");
}
