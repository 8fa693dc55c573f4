//! Contract tests of the `Store` trait. The `contract_tests!` macro runs each case on SQLite
//! and on PostgreSQL.

mod api_reads;
mod dead_letters;
mod search;

use std::sync::Arc;

use domain::{
    ClientId, ClientInfo, ClientKind, Connection, Dialect, MessageId, OrgId, Tenant, Timestamp,
};
use serde_json::json;
use store::{
    ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, PageRequest, PartitionLease, PresenceBatch,
    QueuePosition, QueueTopic, ReceivedAt, Store, StoreError, StoredState, TenantChange,
    WriteOutcome,
};
use store_sqlite::SqliteStore;
use tempfile::TempDir;

use api_reads::*;
use dead_letters::*;
use search::*;

/// A store with its own empty database.
pub struct TestStore {
    pub store: Arc<dyn Store>,
    database: Database,
}

/// The database of a [`TestStore`], for access without the store.
enum Database {
    /// Directory of the SQLite file. The directory is deleted on drop.
    Sqlite(TempDir),
    /// URL of the PostgreSQL database.
    Postgres(String),
}

impl TestStore {
    /// Reads a client's row directly from the database, without the store.
    pub async fn row(&self, client_id: &str) -> Option<test_support::deployment::ConnectionRow> {
        use test_support::deployment;
        match &self.database {
            Database::Sqlite(folder) => {
                deployment::read_sqlite_row(&folder.path().join("test.db"), client_id).await
            }
            Database::Postgres(url) => {
                use sqlx::Connection as _;
                let mut database = sqlx::PgConnection::connect(url).await.unwrap();
                deployment::read_postgres_row(&mut database, client_id).await
            }
        }
    }

    /// Executes a statement directly on the database, without the store.
    pub async fn execute(&self, sql: &'static str) {
        use sqlx::Connection as _;
        match &self.database {
            Database::Sqlite(folder) => {
                let url = format!("sqlite://{}", folder.path().join("test.db").display());
                let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
            Database::Postgres(url) => {
                let mut database = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
        }
    }
}

pub async fn open_sqlite() -> TestStore {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.db");
    TestStore {
        store: Arc::new(SqliteStore::open(&path).await.unwrap()),
        database: Database::Sqlite(folder),
    }
}

/// Creates a database on the PostgreSQL server that `make test` starts, and opens a store on
/// this database.
pub async fn open_postgres() -> TestStore {
    use store_postgres::{PostgresStore, migrate};
    let port = test_support::services::shared_services()
        .await
        .postgres_port;
    let database_name = test_support::services::create_database(port).await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable");
    let settings = test_support::services::postgres_config(port, &database_name);
    migrate(&settings).await.unwrap();
    TestStore {
        store: Arc::new(PostgresStore::new(&settings)),
        database: Database::Postgres(url),
    }
}

/// Creates two tests from each case: a test on SQLite and a test on PostgreSQL. A case is an
/// `async fn(Arc<dyn Store>)`.
macro_rules! contract_tests {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    let test = super::open_sqlite().await;
                    super::$case(test.store.clone()).await;
                    test.store.close().await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    let test = super::open_postgres().await;
                    super::$case(test.store.clone()).await;
                    test.store.close().await;
                }
            )*
        }
    };
}

contract_tests!(
    connection_is_visible_only_to_its_organization,
    second_online_message_replaces_all_values,
    offline_message_moves_the_client_to_disconnected_clients,
    online_message_removes_the_client_from_disconnected_clients,
    tenantless_client_is_stored_but_not_found_for_any_organization,
    tenant_change_keep_preserves_the_stored_tenant,
    list_of_connections_is_ordered_counted_and_paged,
    batch_of_1000_clients_is_written,
    unusual_values_are_read_back_unchanged,
    client_ids_are_listed_in_ascending_order,
    clients_that_disconnected_before_a_time_are_deleted,
    batch_with_an_outdated_lease_is_fenced,
    failed_batch_writes_nothing,
    proxy_is_read_back_unchanged,
    heartbeat_restores_a_disconnected_client,
    heartbeat_before_the_offline_message_is_ignored,
    offline_message_before_a_heartbeat_does_not_end_the_connection,
    queue_positions_are_stored,
    rejected_row_and_unavailable_database_are_different_errors,
    equal_dead_letters_of_a_client_share_one_row,
    oldest_dead_letters_above_the_client_limit_are_deleted,
    dead_letters_can_be_filtered_read_and_purged,
    finish_replay_keeps_a_dead_letter_that_was_rejected_again,
    empty_batch_is_accepted,
    find_connections_for_org_returns_only_connections_of_the_organization,
    satellite_is_found_for_every_organization,
    list_all_clients_returns_pages_of_clients_with_a_tenant,
    filters_match_dispatchers_tags_and_facts,
    prefix_filter_matches_client_id_and_fqdn,
    search_uses_the_latest_online_message,
    page_starts_after_the_given_client_id,
    connection_counts_are_correct_after_every_change,
);

fn timestamp_at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn tenant(org_id: &str) -> Tenant {
    Tenant {
        org_id: org(org_id),
        account: "42".into(),
    }
}

fn received_at(second: i64) -> ReceivedAt {
    ReceivedAt {
        time: timestamp_at(second),
        position: None,
    }
}

fn connection_end(client_id: &str, second: i64) -> ConnectionEnd {
    ConnectionEnd {
        client_id: client(client_id),
        received_at: received_at(second),
    }
}

/// Returns the upsert for an online message that was received at second 0.
fn upsert(client_id: &str, tenant: TenantChange) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: client(client_id),
        dialect: Dialect::Status,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".into(),
        info: ClientInfo {
            canonical_facts: json!({"fqdn": client_id}),
            catalog_service_facts: json!(null),
            dispatchers: json!({"echo": {}}),
            tags: json!(null),
            client_name: "c".into(),
            client_version: "1".into(),
        },
        message_id: Some(MessageId::new("m1").unwrap()),
        message_sent_at: timestamp_at(0),
        received_at: received_at(0),
        last_heartbeat_at: None,
        tenant,
        inventory_eligible: true,
        reported_to_inventory_at: None,
    }
}

/// Returns the upsert for an online message of a client whose tenant was found.
fn upsert_for_org(client_id: &str, org_id: &str) -> ConnectionUpsert {
    upsert(client_id, TenantChange::Found(tenant(org_id)))
}

async fn record_online(store: &Arc<dyn Store>, upserts: Vec<ConnectionUpsert>) {
    let batch = PresenceBatch {
        upserts,
        ..PresenceBatch::default()
    };
    store
        .record_batch(&batch, &[], timestamp_at(1))
        .await
        .unwrap();
}

async fn record_offline(store: &Arc<dyn Store>, client_ids: &[&str], second: i64) {
    let batch = PresenceBatch {
        connection_ends: client_ids
            .iter()
            .map(|client_id| connection_end(client_id, second))
            .collect(),
        ..PresenceBatch::default()
    };
    store
        .record_batch(&batch, &[], timestamp_at(second))
        .await
        .unwrap();
}

async fn record_heartbeat(
    store: &Arc<dyn Store>,
    client_id: &str,
    second: i64,
    tenant: Option<TenantChange>,
) {
    let batch = PresenceBatch {
        heartbeats: vec![HeartbeatUpdate {
            client_id: client(client_id),
            received_at: timestamp_at(second),
            tenant,
        }],
        ..PresenceBatch::default()
    };
    store
        .record_batch(&batch, &[], timestamp_at(second))
        .await
        .unwrap();
}

/// Finds a connection of organization 1.
async fn find_for_org_1(store: &Arc<dyn Store>, client_id: &str) -> Option<Connection> {
    store
        .find_connection_for_org(&org("1"), &client(client_id))
        .await
        .unwrap()
}

async fn load_client_state(store: &Arc<dyn Store>, client_id: &str) -> StoredState {
    let mut states = store
        .load_client_states(&[client(client_id)])
        .await
        .unwrap();
    states.remove(&client(client_id)).expect("a stored state")
}

async fn count_for_org(store: &Arc<dyn Store>, org_id: &str) -> u64 {
    let request = PageRequest::at_offset(0, 1);
    let page = store
        .list_connections_for_org(&org(org_id), &request)
        .await
        .unwrap();
    page.total_count
}

async fn connection_is_visible_only_to_its_organization(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    let found = find_for_org_1(&store, "a").await.unwrap();
    assert_eq!(found.client_id, client("a"));
    assert_eq!(found.tenant, tenant("1"));
    assert_eq!(found.dialect, Dialect::Status);
    assert_eq!(found.topic_prefix, "redhat/insights");
    assert_eq!(found.info, upsert_for_org("a", "1").info);
    assert_eq!(found.message_id.unwrap().as_str(), "m1");
    assert_eq!(found.message_sent_at, timestamp_at(0));
    assert_eq!(
        store
            .find_connection_for_org(&org("2"), &client("a"))
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        find_for_org_1(&store, "A").await,
        None,
        "client ids are case-sensitive"
    );
    assert_eq!(count_for_org(&store, "2").await, 0);
}

async fn second_online_message_replaces_all_values(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    let mut second = upsert_for_org("a", "2");
    second.info.tags = json!({"new": "yes"});
    second.info.client_version = "2".into();
    second.topic_prefix = "qa/insights".into();
    second.message_id = None;
    second.message_sent_at = timestamp_at(5);
    record_online(&store, vec![second.clone()]).await;
    assert_eq!(find_for_org_1(&store, "a").await, None);
    let found = store
        .find_connection_for_org(&org("2"), &client("a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.info, second.info);
    assert_eq!(found.topic_prefix, "qa/insights");
    assert_eq!(found.message_id, None);
    assert_eq!(found.message_sent_at, timestamp_at(5));
}

async fn offline_message_moves_the_client_to_disconnected_clients(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    record_offline(&store, &["a", "unknown"], 2).await;
    assert_eq!(find_for_org_1(&store, "a").await, None);
    assert_eq!(count_for_org(&store, "1").await, 0);
    let states = store
        .load_client_states(&[client("a"), client("unknown")])
        .await
        .unwrap();
    assert_eq!(states.len(), 1);
    let state = &states[&client("a")];
    assert_eq!(state.connection, None);
    let disconnect = state.disconnect.as_ref().unwrap();
    assert_eq!(disconnect.tenant, Some(tenant("1")));
    assert_eq!(disconnect.message_id.as_ref().unwrap().as_str(), "m1");
    assert_eq!(disconnect.received_at, received_at(2));
}

async fn online_message_removes_the_client_from_disconnected_clients(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    record_offline(&store, &["a"], 2).await;
    record_online(
        &store,
        vec![upsert("a", TenantChange::NotFound(timestamp_at(3)))],
    )
    .await;
    let state = load_client_state(&store, "a").await;
    assert_eq!(state.disconnect, None);
    assert_eq!(state.connection.unwrap().tenant, None);
}

async fn tenantless_client_is_stored_but_not_found_for_any_organization(store: Arc<dyn Store>) {
    let upserts = vec![
        upsert("not-found", TenantChange::NotFound(timestamp_at(1))),
        upsert("pending", TenantChange::PendingLookup),
    ];
    record_online(&store, upserts).await;
    for name in ["not-found", "pending"] {
        let stored = load_client_state(&store, name).await.connection.unwrap();
        assert_eq!(stored.tenant, None);
        assert_eq!(stored.message_id.as_ref().unwrap().as_str(), "m1");
        assert_eq!(find_for_org_1(&store, name).await, None);
    }
    // An `OrgId` cannot be empty. Therefore no organization matches the empty `org_id` of a
    // tenantless client.
    assert!(OrgId::new("").is_err());
}

async fn tenant_change_keep_preserves_the_stored_tenant(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    record_online(&store, vec![upsert("a", TenantChange::Keep(tenant("1")))]).await;
    assert_eq!(
        find_for_org_1(&store, "a").await.unwrap().tenant,
        tenant("1")
    );
}

async fn list_of_connections_is_ordered_counted_and_paged(store: Arc<dyn Store>) {
    let mut upserts: Vec<_> = ["b", "a", "C", "c", "_"]
        .iter()
        .map(|name| upsert_for_org(name, "1"))
        .collect();
    upserts.push(upsert_for_org("z", "2"));
    upserts.push(upsert("y", TenantChange::PendingLookup));
    record_online(&store, upserts).await;
    let list_names = async |offset, limit| {
        let page = store
            .list_connections_for_org(&org("1"), &PageRequest::at_offset(offset, limit))
            .await
            .unwrap();
        assert_eq!(page.total_count, 5);
        let names = page.connections.iter().map(|c| c.client_id.to_string());
        names.collect::<Vec<_>>()
    };
    // Both databases must sort client ids by bytes.
    assert_eq!(list_names(0, 10).await, ["C", "_", "a", "b", "c"]);
    assert_eq!(list_names(1, 2).await, ["_", "a"]);
    assert!(list_names(5, 10).await.is_empty());
    assert!(list_names(0, 0).await.is_empty());
    assert!(list_names(u64::MAX, u64::MAX).await.is_empty());
}

async fn batch_of_1000_clients_is_written(store: Arc<dyn Store>) {
    let names: Vec<String> = (0..1000).map(|n| format!("many-{n:04}")).collect();
    let upserts = |tag: &str| {
        names
            .iter()
            .map(|name| {
                let mut upsert = upsert_for_org(name, "1");
                upsert.info.tags = json!({ "tag": tag });
                upsert
            })
            .collect::<Vec<_>>()
    };
    record_online(&store, upserts("one")).await;
    record_online(&store, upserts("two")).await;
    let page = store
        .list_connections_for_org(&org("1"), &PageRequest::at_offset(0, 5000))
        .await
        .unwrap();
    assert_eq!(page.total_count, 1000);
    assert!(
        page.connections
            .iter()
            .all(|c| c.info.tags == json!({"tag": "two"}))
    );
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clients: Vec<ClientId> = names.iter().map(|name| client(name)).collect();
    assert_eq!(
        store.load_client_states(&clients).await.unwrap().len(),
        1000
    );
    record_offline(&store, &names, 2).await;
    assert_eq!(count_for_org(&store, "1").await, 0);
}

async fn unusual_values_are_read_back_unchanged(store: Arc<dyn Store>) {
    let name = "ünï %_'\";-- \u{1F600} \\";
    let mut unusual = upsert_for_org(name, "o'rg \u{1F600}");
    unusual.info.canonical_facts = json!({
        "": null, "deep": [[{"a": [1.5, -7, true]}]], "quote": "\"'\\",
        "big": 9_007_199_254_740_993_i64, "text": "a\tb\n\u{7f}\u{2028}",
    });
    unusual.message_id = Some(MessageId::new(&"é".repeat(255)).unwrap());
    unusual.info.client_name = "n".repeat(255);
    record_online(&store, vec![unusual.clone()]).await;
    let found = store
        .find_connection_for_org(&org("o'rg \u{1F600}"), &client(name))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.info, unusual.info);
    assert_eq!(found.message_id, unusual.message_id);
    assert_eq!(
        store
            .load_client_states(&[client(name)])
            .await
            .unwrap()
            .len(),
        1
    );
}

async fn client_ids_are_listed_in_ascending_order(store: Arc<dyn Store>) {
    let upserts = ["b", "a", "c"].map(|name| upsert(name, TenantChange::PendingLookup));
    record_online(&store, upserts.to_vec()).await;
    let first_page = store.list_client_ids(None, 2).await.unwrap();
    assert_eq!(first_page, [client("a"), client("b")]);
    let second_page = store.list_client_ids(first_page.last(), 2).await.unwrap();
    assert_eq!(second_page, [client("c")]);
}

async fn clients_that_disconnected_before_a_time_are_deleted(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    record_offline(&store, &["a"], 2).await;
    assert_eq!(
        store
            .delete_clients_disconnected_before(timestamp_at(2))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        store
            .load_client_states(&[client("a")])
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        store
            .delete_clients_disconnected_before(timestamp_at(3))
            .await
            .unwrap(),
        1
    );
    assert!(
        store
            .load_client_states(&[client("a")])
            .await
            .unwrap()
            .is_empty()
    );
}

async fn batch_with_an_outdated_lease_is_fenced(store: Arc<dyn Store>) {
    let write = async |name: &str, leases: &[PartitionLease]| {
        let batch = PresenceBatch {
            upserts: vec![upsert_for_org(name, "1")],
            ..PresenceBatch::default()
        };
        store
            .record_batch(&batch, leases, timestamp_at(1))
            .await
            .unwrap()
    };
    let first_leases = store
        .acquire_partitions(QueueTopic::Ingress, &[0, 1], "one")
        .await
        .unwrap();
    assert_eq!(first_leases.len(), 2);
    assert_eq!(write("a", &first_leases).await, WriteOutcome::Committed);
    // The lease of a partition does not affect the partition with the same number in another topic.
    let answers_leases = store
        .acquire_partitions(QueueTopic::Answers, &[1], "two")
        .await
        .unwrap();
    let both_topics = [first_leases[0], first_leases[1], answers_leases[0]];
    assert_eq!(write("a", &both_topics).await, WriteOutcome::Committed);
    let second_leases = store
        .acquire_partitions(QueueTopic::Ingress, &[1], "two")
        .await
        .unwrap();
    assert_ne!(first_leases[1], second_leases[0]);
    assert_eq!(
        write("b", &first_leases).await,
        WriteOutcome::Fenced(vec![first_leases[1]])
    );
    assert_eq!(find_for_org_1(&store, "b").await, None);
    // The first owner still owns partition 0, and the second owner owns partition 1.
    assert_eq!(
        write("c", &first_leases[..1]).await,
        WriteOutcome::Committed
    );
    assert_eq!(write("d", &second_leases).await, WriteOutcome::Committed);
    let never_acquired = [PartitionLease {
        queue: QueueTopic::Ingress,
        partition: 7,
        epoch: 1,
    }];
    assert_eq!(
        write("e", &never_acquired).await,
        WriteOutcome::Fenced(never_acquired.to_vec())
    );
}

async fn failed_batch_writes_nothing(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    // A batch must not contain the same client twice in one list. PostgreSQL rejects this batch,
    // and SQLite uses the last row. In each case, the store writes either all changes or no
    // changes.
    let batch = PresenceBatch {
        upserts: vec![upsert_for_org("b", "1"), upsert_for_org("b", "2")],
        connection_ends: vec![connection_end("a", 2)],
        ..PresenceBatch::default()
    };
    let is_connected = async |name: &str, org_id: &str| {
        let found = store
            .find_connection_for_org(&org(org_id), &client(name))
            .await;
        found.unwrap().is_some()
    };
    match store.record_batch(&batch, &[], timestamp_at(3)).await {
        Ok(_) => assert!(!is_connected("a", "1").await && is_connected("b", "2").await),
        Err(_) => assert!(is_connected("a", "1").await && !is_connected("b", "2").await),
    }
}

async fn empty_batch_is_accepted(store: Arc<dyn Store>) {
    store
        .record_batch(&PresenceBatch::default(), &[], timestamp_at(0))
        .await
        .unwrap();
    assert!(store.load_client_states(&[]).await.unwrap().is_empty());
    store.ping().await.unwrap();
}

async fn proxy_is_read_back_unchanged(store: Arc<dyn Store>) {
    let mut proxy = upsert_for_org("p", "1");
    proxy.dialect = Dialect::Handshake;
    proxy.kind = ClientKind::Proxy;
    proxy.info.catalog_service_facts = json!({"source_type": "s", "application_type": "a"});
    record_online(&store, vec![proxy.clone()]).await;
    let found = find_for_org_1(&store, "p").await.unwrap();
    assert_eq!(
        (found.dialect, found.kind),
        (Dialect::Handshake, ClientKind::Proxy)
    );
    assert_eq!(found.info, proxy.info);
}

async fn heartbeat_restores_a_disconnected_client(store: Arc<dyn Store>) {
    let original = upsert_for_org("a", "1");
    record_online(&store, vec![original.clone()]).await;
    record_online(
        &store,
        vec![upsert("b", TenantChange::NotFound(timestamp_at(0)))],
    )
    .await;
    record_offline(&store, &["a", "b"], 2).await;
    record_heartbeat(&store, "a", 3, None).await;
    record_heartbeat(&store, "b", 3, Some(TenantChange::Found(tenant("1")))).await;
    record_heartbeat(&store, "unknown", 3, None).await;
    let found = find_for_org_1(&store, "a").await.unwrap();
    assert_eq!(found.info, original.info);
    assert_eq!(found.tenant, tenant("1"));
    assert_eq!(found.message_id, original.message_id);
    assert_eq!(
        find_for_org_1(&store, "b").await.unwrap().tenant,
        tenant("1")
    );
    let clients = [client("a"), client("b"), client("unknown")];
    assert_eq!(store.load_client_states(&clients).await.unwrap().len(), 2);
    let state = load_client_state(&store, "a").await;
    let stored = state.connection.unwrap();
    assert!(stored.offline_message_overruled);
    assert_eq!(stored.last_heartbeat_at, Some(timestamp_at(3)));
    assert_eq!(stored.received_at, received_at(2));
    assert_eq!(state.disconnect, None);
    // The next online message clears the field `offline_message_overruled`.
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    let stored = load_client_state(&store, "a").await.connection.unwrap();
    assert!(!stored.offline_message_overruled);
}

async fn heartbeat_before_the_offline_message_is_ignored(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    record_offline(&store, &["a"], 2).await;
    record_heartbeat(&store, "a", 2, None).await;
    assert_eq!(find_for_org_1(&store, "a").await, None);
    // A later offline message of a disconnected client replaces the earlier offline message.
    record_offline(&store, &["a"], 6).await;
    record_heartbeat(&store, "a", 5, None).await;
    assert_eq!(find_for_org_1(&store, "a").await, None);
    record_heartbeat(&store, "a", 7, None).await;
    assert!(find_for_org_1(&store, "a").await.is_some());
}

async fn offline_message_before_a_heartbeat_does_not_end_the_connection(store: Arc<dyn Store>) {
    record_online(&store, vec![upsert_for_org("a", "1")]).await;
    record_heartbeat(&store, "a", 5, None).await;
    record_offline(&store, &["a"], 2).await;
    assert!(find_for_org_1(&store, "a").await.is_some());
    let stored = load_client_state(&store, "a").await.connection.unwrap();
    assert!(stored.offline_message_overruled);
    assert_eq!(stored.received_at, received_at(2));
    assert_eq!(stored.last_heartbeat_at, Some(timestamp_at(5)));
    record_offline(&store, &["a"], 5).await;
    assert_eq!(find_for_org_1(&store, "a").await, None);
    // An upsert can contain a heartbeat that is later than its online message.
    let mut with_heartbeat = upsert_for_org("a", "1");
    with_heartbeat.last_heartbeat_at = Some(timestamp_at(9));
    record_online(&store, vec![with_heartbeat]).await;
    record_offline(&store, &["a"], 2).await;
    assert!(find_for_org_1(&store, "a").await.is_some());
}

async fn queue_positions_are_stored(store: Arc<dyn Store>) {
    let position = |offset| {
        Some(QueuePosition {
            partition: 3,
            offset,
        })
    };
    let mut upsert = upsert_for_org("a", "1");
    upsert.received_at.position = position(7);
    record_online(&store, vec![upsert]).await;
    let stored = load_client_state(&store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at.position, position(7));
    let mut connection_end = connection_end("a", 2);
    connection_end.received_at.position = position(8);
    let batch = PresenceBatch {
        connection_ends: vec![connection_end],
        ..PresenceBatch::default()
    };
    store
        .record_batch(&batch, &[], timestamp_at(2))
        .await
        .unwrap();
    let disconnect = load_client_state(&store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.received_at.position, position(8));
    record_heartbeat(&store, "a", 3, None).await;
    let stored = load_client_state(&store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at.position, position(8));
}

async fn rejected_row_and_unavailable_database_are_different_errors(store: Arc<dyn Store>) {
    let mut with_nul = upsert_for_org("a", "1");
    // In production, the decoder rejects NUL before the message reaches the store. PostgreSQL
    // rejects NUL in text, and SQLite stores it.
    with_nul.info.client_name = "a\0b".into();
    let batch = PresenceBatch {
        upserts: vec![with_nul],
        ..PresenceBatch::default()
    };
    match store.record_batch(&batch, &[], timestamp_at(1)).await {
        Ok(_) | Err(StoreError::RowRejected(_)) => {}
        Err(error) => panic!("{error:?}"),
    }
    store.close().await;
    let result = store.record_batch(&batch, &[], timestamp_at(1)).await;
    assert!(
        matches!(result, Err(StoreError::Unavailable(_))),
        "{result:?}"
    );
}
