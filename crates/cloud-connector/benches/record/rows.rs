//! Test data: online messages of 500 bytes, and the rows that result from these messages. The rows
//! are available in two formats: input for `Store::record_batch`, and text for COPY.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Result;
use domain::{
    ClientId, ClientInfo, ClientKind, IngestStamp, MessageId, OnlineCause, OrgId, Tenant, Timestamp,
};
use serde_json::json;
use sqlx::PgConnection;
use store::{
    ConnectionUpsert, ContentHashes, HistoryRow, NewEvent, PresenceBatch, PresenceColumns,
    PresenceRepository as _, QueuePosition, ReceivedAt, ReplacedRow, TenantChange, Transition,
    event_data,
};
use store_postgres::PostgresStore;

use super::ORG_ID;

/// Number of rows per transaction.
pub const BATCH_SIZE: usize = 1000;

const ACCOUNT: &str = "111000";
const TOPIC_PREFIX: &str = "redhat/insights";

/// Returns an online message of 500 bytes. The tag `revision` distinguishes messages of the same
/// client.
pub fn online_message(client_id: &str, revision: usize) -> String {
    let sent = Timestamp::now();
    let mut message = json!({
        "type": "connection-status", "message_id": uuid::Uuid::new_v4(), "response_to": "",
        "version": 1, "sent": sent.to_string(),
        "content": {
            "state": "online",
            "canonical_facts": {"insights_id": client_id, "fqdn": format!("{client_id}.example")},
            "dispatchers": {"rhc-worker-playbook": {}},
            "tags": {"revision": revision.to_string(), "filler": ""},
        },
    });
    let filler_length = 500_usize.saturating_sub(message.to_string().len());
    message["content"]["tags"]["filler"] = "x".repeat(filler_length).into();
    message.to_string()
}

/// Returns random UUIDs. Each UUID is a client id and also the client's `insights_id`.
pub fn random_client_ids(count: usize) -> Vec<String> {
    let random_id = |_| uuid::Uuid::new_v4().to_string();
    (0..count).map(random_id).collect()
}

/// Returns the upserts that result from one online message per client, in batches of
/// [`BATCH_SIZE`]. Each batch is sorted by client id, as in the recorder.
pub fn upsert_batches(client_ids: &[String], revision: usize) -> Vec<Vec<ConnectionUpsert>> {
    client_ids
        .chunks(BATCH_SIZE)
        .map(|chunk| {
            let upserts = chunk
                .iter()
                .map(|client_id| online_upsert(client_id, revision));
            let mut batch: Vec<ConnectionUpsert> = upserts.collect();
            batch.sort_by(|a, b| a.client_id.cmp(&b.client_id));
            batch
        })
        .collect()
}

fn online_upsert(client_id: &str, revision: usize) -> ConnectionUpsert {
    let message = online_message(client_id, revision);
    let message: serde_json::Value = serde_json::from_str(&message).expect("valid JSON");
    let content = &message["content"];
    let now = Timestamp::now();
    ConnectionUpsert {
        client_id: ClientId::new(client_id).expect("valid client id"),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: TOPIC_PREFIX.to_owned(),
        info: ClientInfo {
            canonical_facts: content["canonical_facts"].clone(),
            catalog_service_facts: json!(null),
            dispatchers: content["dispatchers"].clone(),
            tags: content["tags"].clone(),
            ..ClientInfo::default()
        },
        message_id: MessageId::new(message["message_id"].as_str().unwrap_or_default()).ok(),
        message_sent_at: now,
        received_at: ReceivedAt {
            time: now,
            position: Some(QueuePosition {
                topic: Some(7_521_654_987),
                partition: 0,
                offset: 7,
            }),
            stamp: Some(IngestStamp {
                session: 1,
                epoch: 1_763_449_000,
                sequence: 7,
            }),
        },
        last_heartbeat_at: None,
        tenant: TenantChange::Found(Tenant {
            org_id: OrgId::new(ORG_ID).expect("valid organization id"),
            account: ACCOUNT.to_owned(),
        }),
        inventory_eligible: true,
        reported_to_inventory_at: Some(now),
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    }
}

/// Loads the stored states of the clients of a batch, as the recorder does, and sets the rows that the upserts
/// replace. With `with_history`, also adds what the recorder derives from the states: the counters, the
/// history and the events.
pub async fn apply_stored_states(
    store: &PostgresStore,
    batch: &mut PresenceBatch,
    with_history: bool,
) -> Result<()> {
    let clients: Vec<ClientId> = batch
        .upserts
        .iter()
        .map(|upsert| upsert.client_id.clone())
        .collect();
    let mut states = store.load_client_states(&clients).await?;
    for upsert in &mut batch.upserts {
        let state = states.remove(&upsert.client_id);
        let stored = state.and_then(|state| state.connection);
        upsert.replaced = stored
            .as_ref()
            .map_or(ReplacedRow::Absent, |row| ReplacedRow::Version(row.version));
        if !with_history {
            continue;
        }
        let received_at = upsert.received_at.time;
        let is_new = stored.is_none();
        let stored_presence = stored.map(|row| row.presence).unwrap_or_default();
        let hashes = ContentHashes::new(&upsert.info);
        let tenant = match &upsert.tenant {
            TenantChange::Found(tenant) | TenantChange::Keep(tenant) => tenant.clone(),
            TenantChange::NotFound(_) | TenantChange::PendingLookup => continue,
        };
        let changed_parts = stored_presence
            .content_hashes
            .map(|stored| stored.changed_parts(&hashes))
            .unwrap_or_default();
        let event = |event_type, data| NewEvent {
            client_id: upsert.client_id.clone(),
            tenant: tenant.clone(),
            at: received_at,
            event_type,
            data,
            dispatchers_changed: false,
        };
        if is_new {
            let cause = OnlineCause::Connected;
            batch.history.push(HistoryRow {
                client_id: upsert.client_id.clone(),
                number: 1,
                at: received_at,
                tenant: Some(tenant.clone()),
                transition: Transition::Online(cause),
            });
            let data = event_data::online(&upsert.info, cause);
            batch.events.push(event(event_data::ONLINE, data));
        } else if !changed_parts.is_empty() {
            let data = event_data::updated(&upsert.info, &changed_parts);
            batch.events.push(event(event_data::UPDATED, data));
        }
        upsert.presence = PresenceColumns {
            connected_since: stored_presence.connected_since.or(Some(received_at)),
            last_seen: Some(received_at),
            transition_count: stored_presence.transition_count.max(1),
            content_hashes: Some(hashes),
            ..stored_presence
        };
    }
    Ok(())
}

/// COPY statement that reads the output of [`to_copy_input`].
const COPY_STATEMENT: &str = "COPY connections (client_id, org_id, account, dialect, kind, topic_prefix, \
     canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version, \
     message_id, message_sent, online_received_at, queue_partition, queue_offset, \
     inventory_eligible, stale_timestamp, created_at, updated_at) FROM STDIN";

/// Converts each batch of upserts to input for COPY.
pub fn to_copy_input(batches: &[Vec<ConnectionUpsert>]) -> Vec<Vec<u8>> {
    batches
        .iter()
        .map(|batch| {
            let mut text = String::new();
            for row in batch {
                // The values need no escaping, because they contain no special characters of COPY.
                let ClientInfo {
                    canonical_facts,
                    catalog_service_facts,
                    dispatchers,
                    tags,
                    ..
                } = &row.info;
                let message_id = row.message_id.as_ref().map_or("", MessageId::as_str);
                let (sent, received) = (row.message_sent_at, row.received_at.time);
                let _ = writeln!(
                    text,
                    "{}\t{ORG_ID}\t{ACCOUNT}\tstatus\thost\t{TOPIC_PREFIX}\t{canonical_facts}\t\
                     {catalog_service_facts}\t{dispatchers}\t{tags}\t\t\t{message_id}\t{sent}\t\
                     {received}\t0\t7\tt\t{received}\t{received}\t{received}",
                    row.client_id
                );
            }
            text.into_bytes()
        })
        .collect()
}

/// Writes each batch with COPY in a separate transaction. Returns the rows per second.
pub async fn copy_batches(connection: &mut PgConnection, batches: &[Vec<u8>]) -> Result<f64> {
    let started_at = Instant::now();
    for batch in batches {
        let mut copy = connection.copy_in_raw(COPY_STATEMENT).await?;
        copy.send(batch.as_slice()).await?;
        copy.finish().await?;
    }
    let rows = batches.len() * BATCH_SIZE;
    Ok(rows as f64 / started_at.elapsed().as_secs_f64())
}
