//! Updates of known clients change no index of `connections`.

use std::time::Duration;

use domain::{ClientId, ClientInfo, ClientKind, MessageId, OrgId, Tenant, Timestamp};
use serde_json::json;
use sqlx::{Connection as _, PgConnection, Row as _};
use store::{
    ConnectionUpsert, DeliveredReport, MaintenanceRepository, PresenceBatch, PresenceColumns,
    PresenceRepository as _, ReceivedAt, ReplacedRow, TenantChange, WriteOutcome,
};
use store_postgres::PostgresStore;
use test_support::services;

const CLIENTS: i64 = 2000;
const CLIENTS_PER_BATCH: i64 = 250;
const ROUNDS: i64 = 6;

fn upsert(number: i64, round: i64) -> ConnectionUpsert {
    // Every second client changes a tag in each round.
    let tag = if number % 2 == 0 { round } else { 0 };
    ConnectionUpsert {
        client_id: ClientId::new(&format!("client-{number}")).unwrap(),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".into(),
        info: ClientInfo {
            canonical_facts: json!({"fqdn": format!("host-{number}.example"),
                "insights_id": format!("00000000-0000-4000-8000-{number:012}")}),
            dispatchers: json!({"rhc-worker-playbook": {}}),
            tags: json!({"revision": tag.to_string()}),
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

#[tokio::test]
async fn updates_of_unchanged_and_tag_changed_clients_change_no_index() {
    let port = services::shared_services().await.postgres_port;
    let database = services::create_database(port).await;
    let settings = services::postgres_config(port, &database);
    store_postgres::migrate(&settings).await.unwrap();
    let store = PostgresStore::new(&settings);
    let record = async |batch: PresenceBatch, round: i64| {
        let outcome = store.record_batch(&batch, &[], time(round)).await;
        assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    };
    for round in 0..ROUNDS {
        for start in (0..CLIENTS / CLIENTS_PER_BATCH).map(|batch| batch * CLIENTS_PER_BATCH) {
            let numbers = start..start + CLIENTS_PER_BATCH;
            let upserts: Vec<_> = numbers.map(|number| upsert(number, round)).collect();
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
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
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
