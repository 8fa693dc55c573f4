//! The order of the events that the recorder writes, while transactions wait for each other.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{
    ClientId, ClientInfo, ClientKind, OfflineReason, OnlineCause, OrgId, Tenant, Timestamp,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::{
    ConnectionEnd, ConnectionUpsert, EventRepository as _, NewEvent, PresenceBatch,
    PresenceColumns, PresenceRepository as _, ReceivedAt, ReplacedRow, TenantChange, WriteOutcome,
    event_data,
};
use store_postgres::PostgresStore;
use test_support::services;

/// A database in which the clients `a`, `m` and `x` are connected. Their events have positions.
struct TestDatabase {
    store: PostgresStore,
    url: String,
}

impl TestDatabase {
    async fn create() -> Self {
        let port = services::shared_services().await.postgres_port;
        let name = services::create_migrated_database().await;
        let database = Self {
            store: PostgresStore::new(&services::postgres_config(port, &name)),
            url: format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable"),
        };
        database.record(&online_batch(&["a", "m", "x"], 1)).await;
        assert_eq!(database.store.sequence_events(100).await.unwrap(), 3);
        database
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    async fn record(&self, batch: &PresenceBatch) {
        let outcome = self.store.record_batch(batch, &[], time(9)).await;
        assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    }

    /// Returns the client and the transaction id of each event without a position, ordered by id.
    async fn outbox(&self) -> Vec<(String, i64)> {
        let sql = "SELECT client_id, xmin::text::bigint FROM event_outbox ORDER BY id";
        let mut connection = self.connect().await;
        let rows = sqlx::query_as(sql).fetch_all(&mut connection).await;
        rows.unwrap()
    }

    /// Returns the types of the events of each client after the events of [`Self::create`].
    async fn event_types(&self) -> BTreeMap<String, Vec<String>> {
        let events = self.store.read_events(None, 3, 100).await.unwrap();
        let positions: Vec<u64> = events.iter().map(|event| event.position).collect();
        let expected: Vec<u64> = (4..).take(events.len()).collect();
        assert_eq!(positions, expected);
        let mut types = BTreeMap::<String, Vec<String>>::new();
        for event in events {
            let client_types = types.entry(event.client_id.to_string()).or_default();
            client_types.push(event.event_type);
        }
        types
    }

    /// Waits until a session of the database waits for a lock.
    async fn wait_until_blocked(&self) {
        let mut connection = self.connect().await;
        let blocked = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        for _ in 0..3000 {
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
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

/// A batch with an online message and an event of each client.
fn online_batch(names: &[&str], second: i64) -> PresenceBatch {
    let mut batch = PresenceBatch::default();
    for name in names {
        let tenant = Tenant {
            org_id: OrgId::new("10001").unwrap(),
            account: String::new(),
        };
        batch.events.push(NewEvent {
            client_id: client(name),
            tenant: tenant.clone(),
            at: time(second),
            event_type: event_data::ONLINE,
            data: event_data::online(&ClientInfo::default(), OnlineCause::Connected),
            dispatchers_changed: false,
        });
        batch.upserts.push(ConnectionUpsert {
            client_id: client(name),
            dialect: protocol::status::NAME,
            kind: ClientKind::Host,
            topic_prefix: "redhat/insights".into(),
            info: ClientInfo {
                tags: json!({"second": second.to_string()}),
                ..ClientInfo::default()
            },
            message_id: None,
            message_sent_at: time(second),
            received_at: ReceivedAt::from_time(time(second)),
            last_heartbeat_at: None,
            tenant: TenantChange::Found(tenant),
            inventory_eligible: false,
            reported_to_inventory_at: None,
            replaced: ReplacedRow::Any,
            presence: PresenceColumns::default(),
        });
    }
    batch
}

fn offline_batch(names: &[&str], second: i64) -> PresenceBatch {
    let end = |name: &&str| ConnectionEnd {
        client_id: client(name),
        received_at: ReceivedAt::from_time(time(second)),
        reason: OfflineReason::Client,
    };
    PresenceBatch {
        connection_ends: names.iter().map(end).collect(),
        ..PresenceBatch::default()
    }
}

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}

const LOCK_M: &str = "SELECT FROM connections WHERE client_id = 'm' FOR UPDATE";

/// The batch with the lower transaction id waits for the row of `m`. Meanwhile, a batch with a higher
/// transaction id changes `x`, commits, and its event gets a position.
#[tokio::test]
async fn writer_with_the_lower_transaction_id_that_waits_for_a_row_writes_the_later_event() {
    let database = TestDatabase::create().await;
    let mut lock_owner = database.connect().await;
    run(&mut lock_owner, "BEGIN").await;
    run(&mut lock_owner, LOCK_M).await;
    let first_batch = offline_batch(&["a", "m", "x"], 3);
    let first_writer = database.record(&first_batch);
    let second_writer = async {
        database.wait_until_blocked().await;
        database.record(&online_batch(&["x"], 2)).await;
        let outbox = database.outbox().await;
        assert_eq!(outbox.len(), 1, "{outbox:?}");
        // The sequencer does not wait for the first writer.
        assert_eq!(database.store.sequence_events(100).await.unwrap(), 1);
        run(&mut lock_owner, "ROLLBACK").await;
        outbox[0].1
    };
    let ((), second_xid) = tokio::join!(first_writer, second_writer);
    let outbox = database.outbox().await;
    assert_eq!(outbox.len(), 3, "{outbox:?}");
    let is_older = outbox.iter().all(|(_, xid)| *xid < second_xid);
    assert!(is_older, "{outbox:?}, second writer: {second_xid}");
    assert_eq!(database.store.sequence_events(100).await.unwrap(), 3);
    let types = database.event_types().await;
    assert_eq!(types["x"], ["connection.online", "connection.offline"]);
    assert_eq!(types["a"], ["connection.offline"]);
    assert_eq!(types["m"], ["connection.offline"]);
}

/// As above, but all events get positions at once: their ids decide.
#[tokio::test]
async fn events_of_a_client_are_ordered_by_their_ids_and_not_by_transaction_ids() {
    let database = TestDatabase::create().await;
    let mut lock_owner = database.connect().await;
    run(&mut lock_owner, "BEGIN").await;
    run(&mut lock_owner, LOCK_M).await;
    let first_batch = offline_batch(&["a", "m", "x"], 3);
    tokio::join!(database.record(&first_batch), async {
        database.wait_until_blocked().await;
        database.record(&online_batch(&["x"], 2)).await;
        run(&mut lock_owner, "ROLLBACK").await;
    });
    let outbox = database.outbox().await;
    assert_eq!(outbox[0].0, "x");
    assert!(outbox[1..].iter().all(|(_, xid)| *xid < outbox[0].1));
    assert_eq!(database.store.sequence_events(100).await.unwrap(), 4);
    let types = database.event_types().await;
    assert_eq!(types["x"], ["connection.online", "connection.offline"]);
}

/// A batch of online messages is one statement, which draws the ids of its events after it has locked the
/// rows. A batch with an end of a connection has several statements.
#[tokio::test]
async fn ids_of_events_are_drawn_after_the_rows_of_the_clients_are_locked() {
    for batch in [online_batch(&["m"], 2), offline_batch(&["m"], 2)] {
        let database = TestDatabase::create().await;
        let mut lock_owner = database.connect().await;
        run(&mut lock_owner, "BEGIN").await;
        run(&mut lock_owner, LOCK_M).await;
        tokio::join!(database.record(&batch), async {
            database.wait_until_blocked().await;
            let insert = "INSERT INTO event_outbox (at, type, org_id, account, client_id, data)
                          VALUES (now(), 'connection.updated', '10001', '', 'm', '{}')";
            run(&mut lock_owner, insert).await;
            run(&mut lock_owner, "COMMIT").await;
        });
        assert_eq!(database.store.sequence_events(100).await.unwrap(), 2);
        let types = &database.event_types().await["m"];
        assert_eq!(types.len(), 2);
        assert_eq!(types[0], "connection.updated");
    }
}

/// A batch whose client was changed after its state was loaded writes no event. The recorder builds it again
/// from the new state.
#[tokio::test]
async fn batch_that_was_overtaken_writes_no_event() {
    let database = TestDatabase::create().await;
    let states = database.store.load_client_states(&[client("x")]).await;
    let states = states.unwrap();
    let version = states[&client("x")].connection.as_ref().unwrap().version;
    let mut outdated = online_batch(&["m", "x"], 2);
    outdated.upserts[1].replaced = ReplacedRow::Version(version);
    let mut lock_owner = database.connect().await;
    run(&mut lock_owner, "BEGIN").await;
    run(&mut lock_owner, LOCK_M).await;
    let (outcome, ()) = tokio::join!(
        database.store.record_batch(&outdated, &[], time(9)),
        async {
            database.wait_until_blocked().await;
            let other = online_batch(&["x"], 3);
            let outcome = database.store.record_batch(&other, &[], time(10)).await;
            assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
            run(&mut lock_owner, "ROLLBACK").await;
        }
    );
    assert_eq!(outcome.unwrap(), WriteOutcome::Conflict);
    assert_eq!(database.outbox().await.len(), 1);
}

/// After a vacuum of the empty table, PostgreSQL expects one event without a position. If there are many, a
/// join of the oldest ids with the table would compare each event with each of these ids.
#[tokio::test]
async fn sequencer_reads_each_event_once_although_postgresql_expects_an_empty_table() {
    let database = TestDatabase::create().await;
    let mut connection = database.connect().await;
    let insert = "INSERT INTO event_outbox (at, type, org_id, account, client_id, data)
                  SELECT now(), 'connection.updated', '10001', '', 'client-' || i, '{}'
                    FROM generate_series(1, 10000) AS i";
    run(&mut connection, insert).await;
    run(&mut connection, "DELETE FROM event_outbox").await;
    run(&mut connection, "VACUUM (TRUNCATE false) event_outbox").await;
    run(&mut connection, insert).await;
    let mut statements = store_postgres::statements().into_iter();
    let statement = statements.find(|(name, _)| name.ends_with("SEQUENCE_EVENTS"));
    let (_, sql) = statement.unwrap();
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}",
        sql.replace("$1", "1000").replace("$2", "0")
    );
    let plan: serde_json::Value = sqlx::query_scalar(AssertSqlSafe(explain))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let blocks = plan[0]["Plan"]["Shared Hit Blocks"].as_u64().unwrap();
    assert!(blocks < 20_000, "{blocks} blocks: {plan}");
}

/// NOTIFY takes a lock on all databases until the end of the commit, so it would serialize the commits of all
/// writers.
#[tokio::test]
async fn no_statement_and_no_function_sends_a_notification() {
    for (name, sql) in store_postgres::statements() {
        assert!(!sql.to_lowercase().contains("notify"), "{name}: {sql}");
    }
    let database = TestDatabase::create().await;
    let functions = "SELECT proname::text FROM pg_proc
                      WHERE pronamespace = 'public'::regnamespace AND prosrc ILIKE '%notify%'";
    let names: Vec<String> = sqlx::query_scalar(functions)
        .fetch_all(&mut database.connect().await)
        .await
        .unwrap();
    assert_eq!(names, [""; 0]);
}
