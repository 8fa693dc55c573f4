//! The search index and the table of the reports to inventory: the recorder and the triggers write the
//! same rows.

use domain::{ClientId, ClientInfo, ClientKind, MessageId, OrgId, Tenant, Timestamp};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};
use store::{
    ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, MaintenanceRepository as _, PresenceBatch,
    PresenceColumns, PresenceRepository as _, ReceivedAt, ReplacedRow, TenantChange, WriteOutcome,
};
use store_postgres::PostgresStore;
use test_support::services;

/// Number of generated clients.
const GENERATED_CLIENTS: usize = 400;

fn upsert(client_id: &str, info: ClientInfo) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: ClientId::new(client_id).unwrap(),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".into(),
        info,
        message_id: Some(MessageId::new("m1").unwrap()),
        message_sent_at: Timestamp::UNIX_EPOCH,
        received_at: ReceivedAt::from_time(Timestamp::UNIX_EPOCH),
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

fn tenantless_upsert(client_id: &str, info: ClientInfo) -> ConnectionUpsert {
    ConnectionUpsert {
        tenant: TenantChange::PendingLookup,
        ..upsert(client_id, info)
    }
}

fn info(canonical_facts: Value, dispatchers: Value, tags: Value) -> ClientInfo {
    ClientInfo {
        canonical_facts,
        dispatchers,
        tags,
        ..ClientInfo::default()
    }
}

/// Facts with types, texts and numbers that are easy to convert in a different way.
fn unusual_clients() -> Vec<ClientInfo> {
    let uuid = "CABB61B6-E61D-4D70-B475-01F5C009E93C";
    let many: Value = (0..300).map(|n| (format!("key-{n}"), json!(n))).collect();
    vec![
        info(json!({}), json!(null), json!(null)),
        info(
            json!({"fqdn": "Host-1.EXAMPLE"}),
            json!({"a_b": {}, "c-d": null}),
            json!({}),
        ),
        info(
            json!({"insights_id": uuid, "other": uuid.replace('-', ""), "subscription_manager_id": uuid}),
            json!([]),
            json!([1]),
        ),
        info(
            json!({"fqdn": ["a", "B"], "mac": ["0A:1b", null, 7, {"b": 1, "aa": [1.5]}]}),
            json!("text"),
            json!({"k": ["V", true, null], "K": {"nested": 1}}),
        ),
        info(
            json!({"fqdn": 12.50, "n": 1e21, "small": 1.5e-9, "neg": -0.0, "big": u64::MAX,
            "min": i64::MIN, "float": 1e300, "bool": false, "null": null}),
            json!({"": {}}),
            json!({"": "", "number": -1.25e-3}),
        ),
        info(
            json!({"fqdn": "Ä€😀".repeat(120), "umlaut": "ÄÖÜ", "control": "a\u{1}\u{1f}\"\\\n\u{7f}",
            "list": ["\u{8}\u{c}\u{1f}", ["\"\\\n\u{1}\u{7f}é"]]}),
            json!({"ß_ß": {}}),
            json!({"tab\t": "line\r\n"}),
        ),
        info(
            json!({"insights_id": "Ä€".repeat(200), "subscription_manager_id": "x".repeat(256)}),
            json!({}),
            json!({}),
        ),
        info(
            json!({"insights_id": ["a", 1.50], "subscription_manager_id": {"b": 1e3, "a": null}}),
            json!({}),
            json!({}),
        ),
        info(
            json!({"insights_id": null, "subscription_manager_id": -0.0}),
            json!({}),
            json!({}),
        ),
        info(json!(["insights_id"]), json!({}), json!({})),
        info(many.clone(), many.clone(), many),
        info(
            json!({"list": (0..300).collect::<Vec<_>>(), "zzz": "omitted"}),
            json!({"echo": {}}),
            json!({"tag": "value"}),
        ),
        info(
            json!({"bb": 1, "a": 2, "ccc": 3, "B": 4, "é": 5, "aa": 6}),
            json!(true),
            json!(3),
        ),
    ]
}

/// The content of the hostile messages that are JSON. PostgreSQL does not accept the character NUL; the
/// recorder rejects such a message before.
fn hostile_clients() -> Vec<ClientInfo> {
    let cases = include_str!("../../cloud-connector/tests/corpus/hostile.json");
    let cases: Vec<Value> = serde_json::from_str(cases).unwrap();
    let payloads = cases.iter().filter_map(|case| case["payload"].as_str());
    let contents = payloads
        .filter_map(|payload| serde_json::from_str::<Value>(payload).ok())
        .map(|message| message["content"].clone())
        .filter(|content| content.is_object() && !content.to_string().contains("\\u0000"));
    let part = |content: &Value, key: &str| content.get(key).cloned().unwrap_or(json!(null));
    let clients = contents.map(|content| {
        info(
            part(&content, "canonical_facts"),
            part(&content, "dispatchers"),
            part(&content, "tags"),
        )
    });
    clients.collect()
}

/// JSON without the character NUL, which PostgreSQL does not accept.
fn any_json() -> impl Strategy<Value = Value> {
    let text = "[^\\x00]{0,12}";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
        "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(text, inner, 0..6)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("fqdn".to_owned()),
        Just("insights_id".to_owned()),
        Just("subscription_manager_id".to_owned()),
        "[^\\x00]{0,8}".prop_map(String::from)
    ];
    let members = prop::collection::btree_map(key, any_json(), 0..8);
    prop_oneof![
        9 => members.prop_map(|members| members.into_iter().collect()),
        1 => any_json(),
    ]
}

fn generated_clients() -> Vec<ClientInfo> {
    let clients = (any_object(), any_object(), any_object())
        .prop_map(|(facts, dispatchers, tags)| info(facts, dispatchers, tags));
    let mut runner = TestRunner::deterministic();
    let next = || clients.new_tree(&mut runner).unwrap().current();
    std::iter::repeat_with(next)
        .take(GENERATED_CLIENTS)
        .collect()
}

/// A database with a store, and a connection of another writer.
struct Fixture {
    store: PostgresStore,
    other_writer: PgConnection,
}

impl Fixture {
    async fn new() -> Self {
        let port = services::shared_services().await.postgres_port;
        let database = services::create_database(port).await;
        let settings = services::postgres_config(port, &database);
        store_postgres::migrate(&settings).await.unwrap();
        let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
        Self {
            store: PostgresStore::new(&settings),
            other_writer: PgConnection::connect(&url).await.unwrap(),
        }
    }

    async fn record(&self, upserts: Vec<ConnectionUpsert>) {
        let batch = PresenceBatch {
            upserts,
            ..PresenceBatch::default()
        };
        self.write(batch).await;
    }

    async fn write(&self, batch: PresenceBatch) {
        let outcome = self.store.record_batch(&batch, &[], Timestamp::now()).await;
        assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    }

    async fn fetch_texts(&mut self, sql: &'static str) -> Vec<String> {
        let rows = sqlx::query(sql).fetch_all(&mut self.other_writer).await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test]
async fn recorder_and_triggers_compute_the_same_search_rows() {
    let mut fixture = Fixture::new().await;
    let hostile = hostile_clients();
    assert!(hostile.len() > 100, "{}", hostile.len());
    let clients = [unusual_clients(), hostile, generated_clients()].concat();
    let numbered = clients.iter().cloned().enumerate();
    for tenant in [Some("org"), None] {
        let upserts = numbered.clone().map(|(number, info)| match tenant {
            Some(name) => upsert(&format!("recorder-{name}-{number}"), info),
            None => tenantless_upsert(&format!("recorder-tenantless-{number}"), info),
        });
        fixture.record(upserts.collect()).await;
    }
    let copy = "INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
                       canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version,
                       message_sent, online_received_at)
                SELECT replace(client_id, 'recorder', 'trigger'), org_id, account, dialect, kind,
                       topic_prefix, canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
                       client_version, message_sent, online_received_at FROM connections";
    let copied = sqlx::query(copy).execute(&mut fixture.other_writer).await;
    assert_eq!(copied.unwrap().rows_affected(), 2 * clients.len() as u64);
    let different = "
        SELECT r.client_id || ': ' || r::text || ' ' || t::text || ' ' || c.canonical_facts::text
          FROM connection_search AS r
          JOIN connection_search AS t ON t.client_id = replace(r.client_id, 'recorder', 'trigger')
          JOIN connections AS c ON c.client_id = r.client_id
         WHERE r.client_id LIKE 'recorder-%'
           AND (r.org_id, r.content_hash, r.fqdn, r.insights_id, r.subscription_manager_id, r.term_hashes)
            IS DISTINCT FROM (t.org_id, t.content_hash, t.fqdn, t.insights_id,
                t.subscription_manager_id, t.term_hashes)";
    let differences = fixture.fetch_texts(different).await;
    assert!(differences.is_empty(), "{differences:#?}");
    let count = "SELECT count(*)::text FROM connection_search";
    let expected = (4 * clients.len()).to_string();
    assert_eq!(fixture.fetch_texts(count).await, [expected]);
    let terms_of_tenantless = "SELECT client_id FROM connection_search
                                WHERE (org_id = '') <> (client_id LIKE '%-tenantless-%')
                                   OR (org_id = '' AND term_hashes <> '{}')";
    assert_eq!(fixture.fetch_texts(terms_of_tenantless).await, [""; 0]);
}

#[tokio::test]
async fn search_row_of_a_tenantless_client_is_deleted_with_its_connection() {
    let mut fixture = Fixture::new().await;
    let facts = info(json!({"fqdn": "a.example"}), json!({}), json!({}));
    let client = tenantless_upsert("a", facts.clone());
    fixture.record(vec![client, upsert("b", facts)]).await;
    let rows = "SELECT concat_ws(' ', client_id, org_id, fqdn, cardinality(term_hashes))
                  FROM connection_search ORDER BY client_id";
    let expected = ["a  a.example 0", "b 10001 a.example 1"];
    assert_eq!(fixture.fetch_texts(rows).await, expected);
    let deleted = sqlx::query("DELETE FROM connections")
        .execute(&mut fixture.other_writer)
        .await;
    assert_eq!(deleted.unwrap().rows_affected(), 2);
    assert_eq!(fixture.fetch_texts(rows).await, expected[1..]);
}

#[tokio::test]
async fn update_that_changes_no_content_keeps_the_search_hash() {
    let mut fixture = Fixture::new().await;
    let mut client = upsert("a", info(json!({}), json!({}), json!({"k": "v"})));
    let client_id = client.client_id.clone();
    fixture.record(vec![client.clone()]).await;
    let clients = [client_id.clone()];
    let states = fixture.store.load_client_states(&clients).await.unwrap();
    let connection = states[&client_id].connection.as_ref();
    client.replaced = ReplacedRow::Version(connection.unwrap().version);
    fixture.record(vec![client]).await;
    for (change, is_known) in [
        (
            "UPDATE connections SET org_id = org_id, tags = tags, account = '43'",
            "true",
        ),
        ("UPDATE connections SET tags = '{\"k\": \"w\"}'", "false"),
    ] {
        let changed = sqlx::query(change).execute(&mut fixture.other_writer).await;
        assert_eq!(changed.unwrap().rows_affected(), 1);
        let has_hash = "SELECT (c.search_hash IS NOT NULL)::text FROM connections AS c";
        assert_eq!(fixture.fetch_texts(has_hash).await, [is_known], "{change}");
    }
}

#[tokio::test]
async fn client_that_a_heartbeat_restores_in_another_organization_is_found_there() {
    let mut fixture = Fixture::new().await;
    let client = upsert(
        "a",
        info(json!({"fqdn": "a.example"}), json!({}), json!({})),
    );
    let at = |second| ReceivedAt::from_time(Timestamp::from_second(second).unwrap());
    let client_id = client.client_id.clone();
    fixture.record(vec![client]).await;
    let offline = PresenceBatch {
        connection_ends: vec![ConnectionEnd {
            client_id: client_id.clone(),
            received_at: at(10),
            reason: domain::OfflineReason::Client,
        }],
        ..PresenceBatch::default()
    };
    fixture.write(offline).await;
    let heartbeat = PresenceBatch {
        heartbeats: vec![HeartbeatUpdate {
            client_id,
            received_at: at(20),
            tenant: Some(TenantChange::Found(Tenant {
                org_id: OrgId::new("10002").unwrap(),
                account: "43".into(),
            })),
        }],
        ..PresenceBatch::default()
    };
    fixture.write(heartbeat).await;
    let org_ids = "SELECT org_id FROM connection_search";
    assert_eq!(fixture.fetch_texts(org_ids).await, ["10002"]);
    let is_indexed = "SELECT (term_hashes = ARRAY[hashtextextended(
        '10002' || chr(31) || 'fact:fqdn' || chr(31) || 'a.example', 0)])::text
          FROM connection_search";
    assert_eq!(fixture.fetch_texts(is_indexed).await, ["true"]);
}

#[tokio::test]
async fn flush_empties_the_pending_list_of_the_search_index() {
    let mut fixture = Fixture::new().await;
    sqlx::query("CREATE EXTENSION pgstattuple")
        .execute(&mut fixture.other_writer)
        .await
        .unwrap();
    let pending = "SELECT (pending_tuples > 0)::text
                     FROM pgstatginindex('connection_search_term_hashes')";
    let client = upsert(
        "a",
        info(json!({"fqdn": "a.example"}), json!({}), json!({})),
    );
    fixture.record(vec![client]).await;
    assert_eq!(fixture.fetch_texts(pending).await, ["true"]);
    fixture.store.flush_search_index().await.unwrap();
    assert_eq!(fixture.fetch_texts(pending).await, ["false"]);
}

#[tokio::test]
async fn inventory_reports_follow_the_connections() {
    let mut fixture = Fixture::new().await;
    let clients = (0..6).map(|number| upsert(&format!("client-{number}"), ClientInfo::default()));
    fixture.record(clients.collect()).await;
    for change in [
        "UPDATE connections SET stale_timestamp = now() WHERE client_id = 'client-0'",
        "UPDATE connections SET org_id = '' WHERE client_id = 'client-1'",
        "UPDATE connections SET inventory_eligible = false WHERE client_id IN ('client-2', 'client-3')",
        "UPDATE connections SET inventory_eligible = true, stale_timestamp = now()
          WHERE client_id = 'client-3'",
        "DELETE FROM connections WHERE client_id = 'client-4'",
        "UPDATE connections SET account = '7'",
        "TRUNCATE connections",
    ] {
        let changed = sqlx::query(change).execute(&mut fixture.other_writer).await;
        changed.unwrap();
        let different = "
            SELECT COALESCE(c.client_id, r.client_id)
              FROM (SELECT * FROM connections WHERE org_id <> '' AND inventory_eligible) AS c
              FULL JOIN inventory_reports AS r USING (client_id)
             WHERE c.stale_timestamp IS DISTINCT FROM r.reported_at";
        assert_eq!(fixture.fetch_texts(different).await, [""; 0], "{change}");
    }
}

#[tokio::test]
async fn recorder_writes_a_search_row_only_if_a_term_changes() {
    let mut fixture = Fixture::new().await;
    let facts = json!({"fqdn": "a.example", "details": {"not": "searchable"}});
    let mut client = upsert("a", info(facts, json!({"echo": {}}), json!(null)));
    let version = "SELECT xmin::text FROM connection_search";
    fixture.record(vec![client.clone()]).await;
    let first = fixture.fetch_texts(version).await;
    client.info.canonical_facts["details"] = json!({"not": "searched"});
    client.info.client_version = "2".into();
    fixture.record(vec![client.clone()]).await;
    assert_eq!(fixture.fetch_texts(version).await, first);
    client.info.tags = json!({"region": "east"});
    fixture.record(vec![client]).await;
    assert_ne!(fixture.fetch_texts(version).await, first);
}
