//! What is stored about one client: its row, its presence history and its dead letters.

use domain::{OfflineReason, Timestamp};
use serde_json::json;
use store::{
    ClientRecord, ClientStatus, DeadLetterLimits, HistoryEntry, PresenceBatch, TenantChange,
};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, dead_letter, find_for_org_1, load_client_state, org, record_heartbeat, record_offline,
    record_online, tenant, timestamp_at, upsert, upsert_for_org,
};

async fn find_client_for_org(
    store: &TestStore,
    org_id: &str,
    client_id: &str,
) -> Option<ClientRecord> {
    let (org, client) = (org(org_id), client(client_id));
    let found = store.clients.find_client_for_org(&org, &client).await;
    found.unwrap()
}

async fn find_client(store: &TestStore, client_id: &str) -> Option<ClientRecord> {
    store.clients.find_client(&client(client_id)).await.unwrap()
}

/// Sets columns of a client's row in `table`.
async fn set_columns(store: &TestStore, table: &str, client_id: &str, columns: &str) {
    let sql = format!("UPDATE {table} SET {columns} WHERE client_id = '{client_id}'");
    store.execute(sql).await;
}

pub async fn client_is_found_connected_or_disconnected_only_for_its_organization(
    store: &TestStore,
) {
    let upserts = vec![
        upsert_for_org("connected", "1"),
        upsert_for_org("disconnected", "1"),
        upsert("tenantless", TenantChange::NotFound(timestamp_at(3))),
    ];
    record_online(store, upserts).await;
    record_offline(store, &["disconnected"], 5).await;
    set_columns(
        store,
        "disconnected_clients",
        "disconnected",
        "reason = 'will'",
    )
    .await;
    let start = store.time_literal(timestamp_at(4));
    let columns = format!(
        "reconnects = 7, hourly_reconnects = 2, hourly_reconnects_since = {start},
         connected_since = {start}, last_seen = {start}"
    );
    set_columns(store, "connections", "connected", &columns).await;

    let connected = find_client_for_org(store, "1", "connected").await.unwrap();
    let sent = upsert_for_org("connected", "1");
    assert_eq!(
        connected,
        ClientRecord {
            client_id: client("connected"),
            tenant: Some(tenant("1")),
            dialect: sent.dialect,
            kind: sent.kind,
            topic_prefix: sent.topic_prefix,
            info: sent.info,
            status: ClientStatus::Connected,
            connected_since: timestamp_at(4),
            last_seen: timestamp_at(4),
            reconnects: 7,
            hourly_reconnects: 2,
            hourly_reconnects_since: Some(timestamp_at(4)),
            failed_lookups: 0,
            last_lookup_at: None,
        }
    );
    let disconnected = find_client_for_org(store, "1", "disconnected")
        .await
        .unwrap();
    let expected_status = ClientStatus::Disconnected {
        at: timestamp_at(5),
        reason: Some(OfflineReason::Will),
    };
    assert_eq!(disconnected.status, expected_status);
    set_columns(
        store,
        "disconnected_clients",
        "disconnected",
        "reason = 'of a later version'",
    )
    .await;
    let unknown_reason = find_client(store, "disconnected").await.unwrap();
    let expected_status = ClientStatus::Disconnected {
        at: timestamp_at(5),
        reason: None,
    };
    assert_eq!(unknown_reason.status, expected_status);

    for name in ["connected", "disconnected", "tenantless", "unknown"] {
        assert_eq!(find_client_for_org(store, "2", name).await, None, "{name}");
    }
    for name in ["tenantless", "unknown"] {
        assert_eq!(find_client_for_org(store, "1", name).await, None, "{name}");
    }
    assert_eq!(find_client(store, "connected").await, Some(connected));
    assert_eq!(find_client(store, "unknown").await, None);
    let tenantless = find_client(store, "tenantless").await.unwrap();
    assert_eq!(tenantless.tenant, None);
    assert_eq!(tenantless.last_lookup_at, Some(timestamp_at(3)));
}

pub async fn rows_without_times_have_the_times_of_their_messages(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    let without_times = "connected_since = NULL, last_seen = NULL";
    set_columns(store, "connections", "a", without_times).await;
    let times = |record: ClientRecord| (record.connected_since, record.last_seen);
    let record = find_client(store, "a").await.unwrap();
    assert_eq!(times(record), (timestamp_at(0), timestamp_at(0)));
    record_heartbeat(store, "a", 7, None).await;
    set_columns(store, "connections", "a", without_times).await;
    let record = find_client(store, "a").await.unwrap();
    assert_eq!(times(record), (timestamp_at(0), timestamp_at(7)));
    let connection = find_for_org_1(store, "a").await.unwrap();
    assert_eq!(
        (connection.connected_since, connection.last_seen),
        (timestamp_at(0), timestamp_at(7))
    );
    record_offline(store, &["a"], 9).await;
    set_columns(store, "disconnected_clients", "a", without_times).await;
    let record = find_client(store, "a").await.unwrap();
    assert_eq!(times(record), (timestamp_at(0), timestamp_at(9)));
}

pub async fn connected_row_of_a_client_replaces_its_disconnected_row(store: &TestStore) {
    let upserts = ["a", "old"].map(|name| upsert_for_org(name, "1"));
    record_online(store, upserts.to_vec()).await;
    record_offline(store, &["old"], 5).await;
    set_columns(store, "disconnected_clients", "old", "client_id = 'a'").await;
    let search = store.clients.search_clients("a", 10).await.unwrap();
    let expected = find_client(store, "a").await.unwrap();
    assert_eq!(expected.status, ClientStatus::Connected);
    assert_eq!(search, std::slice::from_ref(&expected));
    assert_eq!(find_client_for_org(store, "1", "a").await, Some(expected));
}

pub async fn clients_are_found_by_each_of_their_identifiers(store: &TestStore) {
    // Longer than the entries of an index.
    let long_name = "x".repeat(300);
    let with_facts = |name: &str, tenant, facts| {
        let mut upsert = upsert(name, tenant);
        upsert.info.canonical_facts = facts;
        upsert
    };
    let found = |org_id| TenantChange::Found(tenant(org_id));
    let upserts = vec![
        with_facts("c", found("1"), json!({"fqdn": "shared.example"})),
        with_facts(
            "b",
            found("2"),
            json!({"insights_id": "shared.example", "fqdn": ["shared.example"]}),
        ),
        with_facts(
            "a",
            TenantChange::PendingLookup,
            json!({"subscription_manager_id": "shared.example"}),
        ),
        with_facts("shared.example", found("1"), json!({"fqdn": 5})),
        with_facts("d", found("1"), json!({"fqdn": "shared.example.com"})),
        with_facts(
            "long-1",
            found("1"),
            json!({"fqdn": format!("{long_name}1")}),
        ),
        with_facts(
            "long-2",
            found("1"),
            json!({"fqdn": format!("{long_name}2")}),
        ),
    ];
    record_online(store, upserts).await;
    record_offline(store, &["c"], 5).await;
    let search = async |text: &str, limit| {
        let found = store.clients.search_clients(text, limit).await.unwrap();
        let names = found.iter().map(|found| found.client_id.to_string());
        names.collect::<Vec<_>>()
    };
    let all = ["a", "b", "c", "shared.example"];
    assert_eq!(search("shared.example", 10).await, all);
    assert_eq!(search("shared.example", 2).await, all[..2]);
    assert_eq!(search(&format!("{long_name}2"), 10).await, ["long-2"]);
    assert_eq!(search("5", 10).await, ["shared.example"]);
    for unknown in ["Shared.example", "shared", "", "%", &long_name] {
        assert!(search(unknown, 10).await.is_empty(), "{unknown}");
    }
}

async fn insert_numbers(store: &TestStore, client_id: &str, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let at = timestamp_at(i64::try_from(number).unwrap());
        store
            .insert_history((client_id, number), at, "1", ("online", "connected"))
            .await;
    }
}

async fn list_numbers(store: &TestStore, client_id: &str) -> Vec<u64> {
    let client = client(client_id);
    let history = store.clients.list_history(None, &client, None, 1000);
    let entries = history.await.unwrap();
    entries.iter().map(|entry| entry.number).collect()
}

pub async fn history_is_listed_newest_first_and_by_organization(store: &TestStore) {
    for (number, org_id, change) in [
        (1, "", ("online", "connected")),
        (2, "1", ("online", "tenant-found")),
        (3, "1", ("offline", "moved")),
        (7, "2", ("online", "of a later version")),
        (8, "2", ("offline", "will")),
    ] {
        let at = timestamp_at(i64::try_from(number).unwrap());
        store
            .insert_history(("a", number), at, org_id, change)
            .await;
    }
    insert_numbers(store, "b", 1..3).await;
    let list = async |org_id: Option<&str>, before_number, limit| {
        let (org, client) = (org_id.map(org), client("a"));
        let history = store
            .clients
            .list_history(org.as_ref(), &client, before_number, limit);
        history.await.unwrap()
    };
    let entries = list(None, None, 10).await;
    let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, [8, 7, 3, 2, 1]);
    let expected = HistoryEntry {
        number: 7,
        at: timestamp_at(7),
        org: Some(org("2")),
        status: "online".to_owned(),
        reason: "of a later version".to_owned(),
    };
    assert_eq!(entries[1], expected);
    assert_eq!(entries[4].org, None);
    assert_eq!(list(None, Some(8), 2).await, entries[1..3]);
    assert_eq!(list(None, Some(1), 2).await, []);
    assert_eq!(list(Some("1"), None, 10).await, entries[2..4]);
    assert_eq!(list(Some("1"), Some(3), 10).await, entries[3..4]);
    assert_eq!(list(Some("2"), None, 1).await, entries[..1]);
    assert_eq!(list(Some("3"), None, 10).await, []);
}

pub async fn recent_dead_letters_of_a_client_are_listed(store: &TestStore) {
    let batch = PresenceBatch {
        dead_letters: vec![
            dead_letter("a", b"1", 5),
            dead_letter("a", b"2", 9),
            dead_letter("a", b"3", 7),
            dead_letter("b", b"1", 8),
        ],
        dead_letter_limits: DeadLetterLimits {
            max_dead_letters_per_client: 10,
        },
        ..PresenceBatch::default()
    };
    let recorded = store
        .presence
        .record_batch(&batch, &[], timestamp_at(10))
        .await;
    recorded.unwrap();
    let received_times = async |name, limit| {
        let client = client(name);
        let found = store.clients.recent_dead_letters(&client, limit).await;
        let found = found.unwrap();
        let times = found.iter().map(|dead_letter| dead_letter.last_received);
        times.collect::<Vec<_>>()
    };
    assert_eq!(
        received_times("a", 10).await,
        [9, 7, 5].map(timestamp_at) as [Timestamp; 3]
    );
    assert_eq!(received_times("a", 1).await, [timestamp_at(9)]);
    assert!(received_times("c", 10).await.is_empty());
}

pub async fn expired_history_is_deleted_in_chunks(store: &TestStore) {
    insert_numbers(store, "a", 1..6).await;
    insert_numbers(store, "b", 4..8).await;
    let delete = async |second, limit| {
        let deleted = store
            .clients
            .delete_history_before(timestamp_at(second), limit);
        deleted.await.unwrap()
    };
    assert_eq!(delete(5, 3).await, 3);
    assert_eq!(delete(5, 3).await, 2);
    assert_eq!(delete(5, 3).await, 0);
    assert_eq!(list_numbers(store, "a").await, [5]);
    assert_eq!(list_numbers(store, "b").await, [7, 6, 5]);
}

pub async fn history_above_the_limit_per_client_is_deleted(store: &TestStore) {
    insert_numbers(store, "a", 1..8).await;
    insert_numbers(store, "b", [3, 4].into_iter()).await;
    insert_numbers(store, "c", [1, 2, 50].into_iter()).await;
    let trim = async |after: Option<&str>| {
        let after = after.map(client);
        let trimmed = store.clients.trim_history(after.as_ref(), 2, 3);
        let trimmed = trimmed.await.unwrap();
        (trimmed.deleted_entries, trimmed.last_client)
    };
    assert_eq!(trim(None).await, (4, Some(client("b"))));
    assert_eq!(list_numbers(store, "a").await, [7, 6, 5]);
    assert_eq!(list_numbers(store, "b").await, [4, 3]);
    assert_eq!(trim(Some("b")).await, (2, Some(client("c"))));
    assert_eq!(list_numbers(store, "c").await, [50]);
    assert_eq!(trim(Some("c")).await, (0, None));
    assert_eq!(trim(None).await, (0, Some(client("b"))));
}

/// The Go implementation and earlier versions delete and insert rows without a count.
pub async fn numbers_continue_after_the_history_of_a_row_without_a_count(store: &TestStore) {
    let names = ["deleted", "ended", "restored", "tenantless"];
    for name in names {
        insert_numbers(store, name, 1..6).await;
    }
    let upserts = vec![
        upsert_for_org("ended", "1"),
        upsert_for_org("restored", "1"),
        upsert("tenantless", TenantChange::NotFound(timestamp_at(0))),
    ];
    record_online(store, upserts).await;
    assert_eq!(
        load_client_state(store, "deleted").await.latest_transition,
        5
    );
    let state = load_client_state(store, "ended").await;
    assert_eq!(state.latest_transition, 5);
    assert_eq!(state.connection.unwrap().presence.transition_count, 0);

    record_offline(store, &["ended", "restored"], 2).await;
    assert_eq!(list_numbers(store, "ended").await, [6, 5, 4, 3, 2, 1]);
    store
        .execute("UPDATE disconnected_clients SET transition_count = 0".to_owned())
        .await;
    let state = load_client_state(store, "ended").await;
    assert_eq!(state.latest_transition, 6);
    record_heartbeat(store, "restored", 3, None).await;
    assert_eq!(list_numbers(store, "restored").await[..2], [7, 6]);

    let found = [(client("tenantless"), tenant("1"))];
    let restored = store.presence.restore_tenants(&found, timestamp_at(4));
    assert_eq!(restored.await.unwrap(), 1);
    assert_eq!(list_numbers(store, "tenantless").await[..2], [6, 5]);
    let state = load_client_state(store, "tenantless").await;
    assert_eq!(state.connection.unwrap().presence.transition_count, 6);
    assert_eq!(state.latest_transition, 0, "the row has a count");
    let unknown = store
        .presence
        .load_client_states(&[client("unknown")])
        .await;
    assert!(unknown.unwrap().is_empty());
}

pub async fn history_is_deleted_with_its_client(store: &TestStore) {
    let upserts = vec![
        upsert_for_org("expired", "1"),
        upsert_for_org("recent", "1"),
        upsert_for_org("old", "1"),
        upsert_for_org("connected", "1"),
        upsert("tenantless", TenantChange::NotFound(timestamp_at(0))),
    ];
    record_online(store, upserts).await;
    record_offline(store, &["expired", "old"], 5).await;
    record_offline(store, &["recent"], 9).await;
    // An old row of a client that is connected again.
    set_columns(
        store,
        "disconnected_clients",
        "old",
        "client_id = 'connected'",
    )
    .await;
    let names = ["expired", "recent", "connected", "tenantless"];
    for name in names {
        insert_numbers(store, name, [1000].into_iter()).await;
    }
    let deleted = store
        .maintenance
        .delete_clients_disconnected_before(timestamp_at(6), 10)
        .await;
    assert_eq!(deleted.unwrap(), 2);
    let clients = ["tenantless", "connected"].map(client);
    let deleted = store.lookup_queue.delete_tenantless_clients(&clients).await;
    assert_eq!(deleted.unwrap(), 1);
    for (name, is_kept) in names.into_iter().zip([false, true, true, false]) {
        let numbers = list_numbers(store, name).await;
        assert_eq!(numbers.contains(&1000), is_kept, "{name}");
        assert_eq!(numbers.is_empty(), !is_kept, "{name}");
    }
}
