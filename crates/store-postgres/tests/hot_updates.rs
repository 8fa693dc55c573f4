//! Updates of known clients change no index of `connections`, whichever fact changes.

use std::time::Duration;

use domain::{ClientId, ClientInfo, ClientKind, MessageId, OrgId, Tenant, Timestamp};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};
use store::{
    ConnectionUpsert, DeliveredReport, MaintenanceRepository, PresenceBatch, PresenceColumns,
    PresenceRepository as _, ReceivedAt, ReplacedRow, TenantChange, WriteOutcome,
};
use store_postgres::PostgresStore;
use test_support::services;
use tokio::sync::Mutex;

const CLIENTS: i64 = 2000;
const CLIENTS_PER_BATCH: i64 = 250;
const ROUNDS: i64 = 6;

/// Returns the facts and the tags that a client sends in a round.
type Content = fn(number: i64, round: i64) -> (Value, Value);

fn upsert(number: i64, round: i64, content: Content) -> ConnectionUpsert {
    let (canonical_facts, tags) = content(number, round);
    ConnectionUpsert {
        client_id: ClientId::new(&format!("client-{number}")).unwrap(),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".into(),
        info: ClientInfo {
            canonical_facts,
            dispatchers: json!({"rhc-worker-playbook": {}}),
            tags,
            ..ClientInfo::default()
        },
        message_id: Some(MessageId::new(&format!("m{round}")).unwrap()),
        message_sent_at: time(round),
        received_at: ReceivedAt::from_time(time(round)),
        last_heartbeat_at: None,
        tenant: TenantChange::Found(Tenant {
            org_id: OrgId::new("10001").unwrap(),
            account: "42".into(),
        }),
        inventory_eligible: true,
        reported_to_inventory_at: None,
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    }
}

fn time(round: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + round * 10_000).unwrap()
}

fn facts(number: i64) -> Value {
    json!({"fqdn": format!("host-{number}.example"),
        "insights_id": format!("00000000-0000-4000-8000-{number:012}"),
        "subscription_manager_id": format!("00000000-0000-4000-9000-{number:012}")})
}

/// Every second client changes a tag in each round.
fn tags(number: i64, round: i64) -> Value {
    let revision = if number % 2 == 0 { round } else { 0 };
    json!({"revision": revision.to_string()})
}

/// Returns a text of 4 KB that PostgreSQL cannot compress.
fn random_text(number: i64) -> String {
    let mut state = number.unsigned_abs() + 1;
    let letters = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'!' + (state >> 33).to_le_bytes()[0] % 90)
    });
    letters.take(4096).collect()
}

#[tokio::test]
async fn updates_of_unchanged_and_tag_changed_clients_change_no_index() {
    assert_updates_are_hot(|number, round| (facts(number), tags(number, round))).await;
}

#[tokio::test]
async fn updates_of_clients_with_a_changed_fact_change_no_index() {
    let content: Content = |number, round| {
        let mut facts = facts(number);
        facts["ip_addresses"] = json!([format!("10.{round}.{}.{}", number / 256, number % 256)]);
        (facts, json!({}))
    };
    assert_updates_are_hot(content).await;
}

/// PostgreSQL compresses the facts of half of the clients, and stores those of the others outside the row.
#[tokio::test]
async fn updates_of_rows_with_four_kilobytes_change_no_index() {
    let content: Content = |number, round| {
        let mut facts = facts(number);
        facts["details"] = if number % 4 < 2 {
            json!("compressible ".repeat(4096 / 13))
        } else {
            json!(random_text(number))
        };
        (facts, tags(number, round))
    };
    assert_updates_are_hot(content).await;
}

async fn assert_updates_are_hot(content: Content) {
    // One test at a time: PostgreSQL frees the space of old row versions only if no snapshot needs them, and a
    // slow autovacuum or ANALYZE of a busy server holds its snapshot for long.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _guard = ONE_AT_A_TIME.lock().await;
    let port = services::shared_services().await.postgres_port;
    let database = services::create_database(port).await;
    let settings = services::postgres_config(port, &database);
    store_postgres::migrate(&settings).await.unwrap();
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("ALTER TABLE connections SET (autovacuum_enabled = false)")
        .execute(&mut connection)
        .await
        .unwrap();
    let store = PostgresStore::new(&settings);
    let record = async |batch: PresenceBatch, round: i64| {
        let outcome = store.record_batch(&batch, &[], time(round)).await;
        assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    };
    for round in 0..ROUNDS {
        for start in (0..CLIENTS / CLIENTS_PER_BATCH).map(|batch| batch * CLIENTS_PER_BATCH) {
            let numbers = start..start + CLIENTS_PER_BATCH;
            let upserts: Vec<_> = numbers
                .map(|number| upsert(number, round, content))
                .collect();
            let delivered_reports = upserts.iter().map(|upsert| DeliveredReport {
                client_id: upsert.client_id.clone(),
                row_version: time(round),
                online_received_at: time(round),
                reported_at: time(round) + Duration::from_secs(1),
            });
            let reports = PresenceBatch {
                delivered_reports: delivered_reports.collect(),
                ..PresenceBatch::default()
            };
            let online = PresenceBatch {
                upserts,
                ..PresenceBatch::default()
            };
            record(online, round).await;
            record(reports, round).await;
        }
    }
    // Each round has an upsert and a delivered report for each client. The first upsert is an insert.
    let expected = CLIENTS * (2 * ROUNDS - 1);
    // The server updates its statistics when a connection is closed, or with a delay.
    MaintenanceRepository::close(&store).await;
    let mut hot_updates: i64 = 0;
    let statistics = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
                       WHERE relname = 'connections'";
    for _ in 0..100 {
        let row = sqlx::query(statistics).fetch_one(&mut connection).await;
        let row = row.unwrap();
        hot_updates = row.get(1);
        if row.get::<i64, _>(0) == expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let percent = hot_updates as f64 * 100.0 / expected as f64;
    println!("{hot_updates} of {expected} updates are HOT ({percent:.1} %)");
    assert!(
        percent >= 95.0,
        "{hot_updates} of {expected} updates are HOT"
    );
}
