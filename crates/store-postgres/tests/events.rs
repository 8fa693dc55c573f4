//! The sequencer gives positions to committed events without gaps, and keeps the order of the events
//! of each client, although transactions overlap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection, Row as _};
use store::{EventRepository as _, StoredEvent};
use store_postgres::PostgresStore;
use test_support::services;

struct TestDatabase {
    store: PostgresStore,
    port: u16,
    name: String,
}

impl TestDatabase {
    async fn create() -> Self {
        let port = services::shared_services().await.postgres_port;
        let name = services::create_migrated_database().await;
        let store = PostgresStore::new(&services::postgres_config(port, &name));
        Self { store, port, name }
    }

    async fn connect(&self) -> PgConnection {
        connect(self.port, &self.name).await
    }

    async fn sequence(&self, limit: u32) -> u64 {
        self.store.sequence_events(limit).await.unwrap()
    }

    async fn read_all(&self) -> Vec<StoredEvent> {
        self.store.read_events(None, 0, 100_000).await.unwrap()
    }

    /// Returns the position and the client of each event.
    async fn positions(&self) -> Vec<(u64, String)> {
        let events = self.read_all().await.into_iter();
        let pairs = events.map(|event| (event.position, event.client_id.to_string()));
        pairs.collect()
    }
}

async fn connect(port: u16, database: &str) -> PgConnection {
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    PgConnection::connect(&url).await.unwrap()
}

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}

/// Inserts an event, and returns its id in the outbox.
async fn insert(connection: &mut PgConnection, client: &str, number: i64) -> i64 {
    let row = sqlx::query(
        "INSERT INTO event_outbox (at, type, org_id, account, client_id, data)
         VALUES (now(), 'connection.online', '1', '', $1, json_build_object('number', $2)::text)
         RETURNING id",
    )
    .bind(client)
    .bind(number)
    .fetch_one(connection)
    .await;
    row.unwrap().get(0)
}

fn named(pairs: &[(u64, &str)]) -> Vec<(u64, String)> {
    let pairs = pairs.iter();
    pairs.map(|(id, name)| (*id, (*name).to_owned())).collect()
}

#[tokio::test]
async fn event_that_draws_its_id_first_and_commits_last_is_not_skipped() {
    let database = TestDatabase::create().await;
    let (mut slow, mut fast) = (database.connect().await, database.connect().await);
    run(&mut slow, "BEGIN").await;
    let slow_id = insert(&mut slow, "slow", 1).await;
    let fast_id = insert(&mut fast, "fast", 1).await;
    assert!(slow_id < fast_id);
    assert_eq!(database.sequence(10).await, 1);
    assert_eq!(database.positions().await, named(&[(1, "fast")]));
    run(&mut slow, "COMMIT").await;
    assert_eq!(database.sequence(10).await, 1);
    let expected = named(&[(1, "fast"), (2, "slow")]);
    assert_eq!(database.positions().await, expected);
    assert_eq!(database.store.newest_position().await.unwrap(), 2);
    assert_eq!(database.sequence(10).await, 0);
}

#[tokio::test]
async fn rolled_back_event_leaves_no_gap() {
    let database = TestDatabase::create().await;
    let mut connection = database.connect().await;
    insert(&mut connection, "a", 1).await;
    run(&mut connection, "BEGIN").await;
    insert(&mut connection, "rolled-back", 1).await;
    run(&mut connection, "ROLLBACK").await;
    insert(&mut connection, "b", 1).await;
    assert_eq!(database.sequence(10).await, 2);
    assert_eq!(database.positions().await, named(&[(1, "a"), (2, "b")]));
}

#[tokio::test]
async fn open_transactions_do_not_delay_the_sequencer() {
    let database = TestDatabase::create().await;
    let other_database = services::create_migrated_database().await;
    let mut elsewhere = connect(database.port, &other_database).await;
    let mut here = database.connect().await;
    for connection in [&mut elsewhere, &mut here] {
        run(connection, "BEGIN").await;
        // Draws a transaction id, which is older than the ids of all later transactions.
        run(connection, "SELECT pg_current_xact_id()").await;
        insert(connection, "never-committed", 1).await;
    }
    let mut writer = database.connect().await;
    insert(&mut writer, "a", 1).await;
    assert_eq!(database.sequence(10).await, 1);
    assert_eq!(database.positions().await, named(&[(1, "a")]));
}

#[tokio::test]
async fn sequencer_does_nothing_while_another_process_has_the_lock() {
    let database = TestDatabase::create().await;
    let mut other = database.connect().await;
    insert(&mut other, "a", 1).await;
    run(&mut other, "BEGIN").await;
    let lock = "SELECT position FROM event_positions WHERE name = 'sequencer' FOR UPDATE";
    run(&mut other, lock).await;
    assert_eq!(database.sequence(10).await, 0);
    assert_eq!(database.store.outbox_len().await.unwrap(), 1);
    run(&mut other, "ROLLBACK").await;
    assert_eq!(database.sequence(10).await, 1);
    assert_eq!(database.store.outbox_len().await.unwrap(), 0);
}

/// Each writer locks the row of a client and then inserts an event with the client's next number.
#[tokio::test]
async fn concurrent_writers_and_sequencers_leave_no_gap_and_keep_the_order_of_each_client() {
    const WRITERS: i64 = 4;
    const EVENTS_PER_WRITER: i64 = 60;
    const CLIENTS: i64 = 3;
    let database = TestDatabase::create().await;
    let mut connection = database.connect().await;
    run(
        &mut connection,
        "CREATE TABLE test_clients (id bigint PRIMARY KEY, number bigint NOT NULL)",
    )
    .await;
    run(
        &mut connection,
        "INSERT INTO test_clients SELECT id, 0 FROM generate_series(0, 2) AS id",
    )
    .await;
    let writers_finished = Arc::new(AtomicBool::new(false));
    let sequencers: Vec<_> = (0..2)
        .map(|_| {
            let (store, finished) = (database.store.clone(), writers_finished.clone());
            tokio::spawn(async move {
                while !finished.load(Ordering::SeqCst) {
                    store.sequence_events(7).await.unwrap();
                }
            })
        })
        .collect();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let mut connection = database.connect().await;
        writers.push(tokio::spawn(async move {
            for step in 0..EVENTS_PER_WRITER {
                let client = (step + writer) % CLIENTS;
                run(&mut connection, "BEGIN").await;
                let next = "UPDATE test_clients SET number = number + 1 WHERE id = $1
                            RETURNING number";
                let row = sqlx::query(next).bind(client).fetch_one(&mut connection);
                let number: i64 = row.await.unwrap().get(0);
                insert(&mut connection, &format!("client-{client}"), number).await;
                if step % 3 > 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                run(&mut connection, "COMMIT").await;
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    writers_finished.store(true, Ordering::SeqCst);
    for sequencer in sequencers {
        sequencer.await.unwrap();
    }
    while database.sequence(1000).await > 0 {}
    let events = database.read_all().await;
    let positions: Vec<u64> = events.iter().map(|event| event.position).collect();
    let event_count = u64::try_from(WRITERS * EVENTS_PER_WRITER).unwrap();
    assert_eq!(positions, (1..=event_count).collect::<Vec<_>>());
    let mut numbers = BTreeMap::<String, Vec<i64>>::new();
    for event in events {
        let number = event.data["number"].as_i64().unwrap();
        let client = event.client_id.to_string();
        numbers.entry(client).or_default().push(number);
    }
    assert_eq!(i64::try_from(numbers.len()), Ok(CLIENTS));
    for (client, numbers) in numbers {
        let expected: Vec<i64> = (1..).take(numbers.len()).collect();
        assert_eq!(numbers, expected, "{client}");
    }
}

#[tokio::test]
async fn only_the_holder_of_the_lease_stores_the_position_of_the_forwarder() {
    let database = TestDatabase::create().await;
    let store = &database.store;
    let minute = Duration::from_mins(1);
    let hold = async |holder: &str| store.hold_forwarder(holder, minute).await.unwrap();
    let save = async |holder: &str, position| {
        let stored = store.store_forwarded_position(holder, position).await;
        stored.unwrap()
    };
    assert_eq!(hold("one").await, Some(0));
    assert_eq!(hold("two").await, None);
    assert!(save("one", 5).await);
    assert!(!save("two", 6).await);
    assert!(!save("one", 4).await, "the position never decreases");
    assert_eq!(hold("one").await, Some(5));
    assert_eq!(store.forwarded_position().await.unwrap(), Some(5));
    let mut connection = database.connect().await;
    let expire = "UPDATE event_positions SET held_until = now() - interval '1 second'
                   WHERE name = 'forwarder'";
    run(&mut connection, expire).await;
    assert!(!save("one", 7).await);
    assert_eq!(hold("two").await, Some(5));
    assert_eq!(hold("one").await, None);
    // A duration of 0 ends the lease.
    let ended = store.hold_forwarder("two", Duration::ZERO).await;
    assert_eq!(ended.unwrap(), Some(5));
    assert_eq!(hold("one").await, Some(5));
}
