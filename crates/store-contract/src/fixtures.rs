//! Rows, and short functions that write and read them, for the cases.

use std::time::Duration;

use bytes::Bytes;
use domain::{
    ClientId, ClientInfo, ClientKind, Connection, MessageId, OrgId, RejectReason, Tenant, Timestamp,
};
use protocol::{InboundMessage, Rejection};
use serde_json::json;
use store::{
    AnswerContent, ConnectionEnd, ConnectionUpsert, DeadLetter, HeartbeatUpdate, MessageAnswer,
    NewMessage, PageRequest, PresenceBatch, PresenceColumns, ReceivedAt, ReplacedRow, StoredState,
    TenantChange,
};
use test_support::stores::TestStore;

pub(crate) fn timestamp_at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub(crate) fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

pub(crate) fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

pub(crate) fn tenant(org_id: &str) -> Tenant {
    Tenant {
        org_id: org(org_id),
        account: "42".into(),
    }
}

pub(crate) fn received_at(second: i64) -> ReceivedAt {
    ReceivedAt::from_time(timestamp_at(second))
}

pub(crate) fn connection_end(client_id: &str, second: i64) -> ConnectionEnd {
    ConnectionEnd {
        client_id: client(client_id),
        received_at: received_at(second),
        reason: domain::OfflineReason::Client,
    }
}

/// Returns the upsert for an online message that was received at second 0.
pub(crate) fn upsert(client_id: &str, tenant: TenantChange) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: client(client_id),
        dialect: protocol::status::NAME,
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
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    }
}

/// Returns the upsert for an online message of a client whose tenant was found.
pub(crate) fn upsert_for_org(client_id: &str, org_id: &str) -> ConnectionUpsert {
    upsert(client_id, TenantChange::Found(tenant(org_id)))
}

pub(crate) async fn record_online(store: &TestStore, upserts: Vec<ConnectionUpsert>) {
    let batch = PresenceBatch {
        upserts,
        ..PresenceBatch::default()
    };
    store
        .presence
        .record_batch(&batch, &[], timestamp_at(1))
        .await
        .unwrap();
}

pub(crate) async fn record_offline(store: &TestStore, client_ids: &[&str], second: i64) {
    let batch = PresenceBatch {
        connection_ends: client_ids
            .iter()
            .map(|client_id| connection_end(client_id, second))
            .collect(),
        ..PresenceBatch::default()
    };
    store
        .presence
        .record_batch(&batch, &[], timestamp_at(second))
        .await
        .unwrap();
}

pub(crate) async fn record_heartbeat(
    store: &TestStore,
    client_id: &str,
    second: i64,
    tenant: Option<TenantChange>,
) {
    let batch = PresenceBatch {
        heartbeats: vec![HeartbeatUpdate {
            client_id: client(client_id),
            received_at: received_at(second),
            tenant,
        }],
        ..PresenceBatch::default()
    };
    store
        .presence
        .record_batch(&batch, &[], timestamp_at(second))
        .await
        .unwrap();
}

/// Finds a connection of organization 1.
pub(crate) async fn find_for_org_1(store: &TestStore, client_id: &str) -> Option<Connection> {
    store
        .connections
        .find_connection_for_org(&org("1"), &client(client_id))
        .await
        .unwrap()
}

pub(crate) async fn load_client_state(store: &TestStore, client_id: &str) -> StoredState {
    let mut states = store
        .presence
        .load_client_states(&[client(client_id)])
        .await
        .unwrap();
    states.remove(&client(client_id)).expect("a stored state")
}

pub(crate) async fn count_for_org(store: &TestStore, org_id: &str) -> u64 {
    let request = PageRequest::at_offset(0, 1);
    let page = store
        .connections
        .list_connections_for_org(&org(org_id), &request)
        .await
        .unwrap();
    page.total_count
}

/// Stores a message of an organization in the state `sending`, with a lease of an hour.
pub(crate) async fn insert_message(
    store: &TestStore,
    id: &str,
    org_id: &str,
    client_id: &str,
    second: i64,
) {
    let message = NewMessage {
        id: MessageId::new(id).unwrap(),
        sender: tenant(org_id),
        caller: "key".into(),
        client_id: client(client_id),
        client_org: org(org_id),
        directive: "echo".into(),
        created_at: timestamp_at(second),
    };
    let lease = Duration::from_hours(1);
    let inserted = store.messages.insert_sending(&message, lease).await;
    inserted.unwrap();
}

/// Returns one answer of a client to a message.
pub(crate) fn answer(client_id: &str, id: &str, json: &str, second: i64) -> MessageAnswer {
    MessageAnswer {
        message_id: MessageId::new(id).unwrap(),
        client_id: client(client_id),
        is_rejection: false,
        content: AnswerContent {
            json: json.to_owned(),
            is_truncated: false,
        },
        received_at: timestamp_at(second),
        count: 1,
    }
}

/// Returns a dead letter of a client. An empty name stands for a topic without a client.
pub(crate) fn dead_letter(name: &str, payload: &'static [u8], second: i64) -> DeadLetter {
    let message = InboundMessage {
        topic: format!("redhat/insights/{name}/control/out"),
        payload: Bytes::from_static(payload),
        retained: false,
        is_operator_replay: false,
        is_last_will: None,
        is_takeover: false,
        received_at: timestamp_at(second),
        ingest_stamp: None,
        truncated_from: None,
    };
    let rejection = Rejection::new(RejectReason::InvalidJson, "line 1");
    DeadLetter::new(ClientId::new(name).ok(), &message, &rejection)
}
