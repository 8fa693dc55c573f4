//! Rows as online messages of 500 bytes make them: for our own writer, and as text for COPY.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Result;
use cloud_connector::domain::{
    ClientId, ClientInfo, ClientKind, Dialect, MessageId, OrgId, Tenant, Timestamp,
};
use cloud_connector::store::{ConnectionUpsert, QueuePosition, ReceivedAt, TenantChange};
use serde_json::json;
use sqlx::PgConnection;

/// Rows that are committed together.
pub const BATCH: usize = 1000;

/// An online message of a client, of 500 bytes.
pub fn message(client: &str, round: usize) -> String {
    let sent = Timestamp::now();
    let mut message = json!({
        "type": "connection-status", "message_id": uuid::Uuid::new_v4(), "response_to": "",
        "version": 1, "sent": sent.to_string(),
        "content": {
            "state": "online",
            "canonical_facts": {"insights_id": insights_id(client), "fqdn": format!("{client}.example")},
            "dispatchers": {"rhc-worker-playbook": {}},
            "tags": {"round": round.to_string(), "filler": ""},
        },
    });
    let missing = 500_usize.saturating_sub(message.to_string().len());
    message["content"]["tags"]["filler"] = "x".repeat(missing).into();
    message.to_string()
}

/// The same for the same client.
fn insights_id(client: &str) -> String {
    uuid::Uuid::parse_str(client).map_or_else(|_| client.to_owned(), |id| id.to_string())
}

pub fn clients(count: usize) -> Vec<String> {
    let new = |_| uuid::Uuid::new_v4().to_string();
    (0..count).map(new).collect()
}

/// What the recorder makes of everybody's message, sorted as it sorts a batch.
pub fn arrivals(clients: &[String], round: usize) -> Vec<Vec<ConnectionUpsert>> {
    clients
        .chunks(BATCH)
        .map(|chunk| {
            let mut batch: Vec<ConnectionUpsert> =
                chunk.iter().map(|client| arrival(client, round)).collect();
            batch.sort_by(|a, b| a.client_id.cmp(&b.client_id));
            batch
        })
        .collect()
}

fn arrival(client: &str, round: usize) -> ConnectionUpsert {
    let message: serde_json::Value =
        serde_json::from_str(&message(client, round)).expect("JSON of ours");
    let content = &message["content"];
    let now = Timestamp::now();
    ConnectionUpsert {
        client_id: ClientId::new(client).expect("an id of ours"),
        dialect: Dialect::Status,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".to_owned(),
        reported: ClientInfo {
            canonical_facts: content["canonical_facts"].clone(),
            catalog_service_facts: json!(null),
            dispatchers: content["dispatchers"].clone(),
            tags: content["tags"].clone(),
            client_name: String::new(),
            client_version: String::new(),
        },
        message_id: MessageId::new(message["message_id"].as_str().unwrap_or_default()).ok(),
        message_sent: now,
        heard: ReceivedAt {
            at: now,
            place: Some(QueuePosition {
                partition: 0,
                offset: 7,
            }),
        },
        last_heartbeat_at: None,
        tenant: TenantChange::Found(Tenant {
            org_id: OrgId::new("10000").expect("an organisation of ours"),
            account: "111000".to_owned(),
        }),
        inventory_eligible: true,
        reported_to_inventory_at: Some(now),
    }
}

const COPY: &str = "COPY connections (client_id, org_id, account, dialect, kind, topic_prefix, \
     canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version, \
     message_id, message_sent, online_received_at, queue_partition, queue_offset, inventory_eligible, \
     stale_timestamp, created_at, updated_at) FROM STDIN";

/// The same rows as COPY reads them.
pub fn as_text(batches: &[Vec<ConnectionUpsert>]) -> Vec<Vec<u8>> {
    batches
        .iter()
        .map(|batch| {
            let mut text = String::new();
            for row in batch {
                // Nothing in it is special to COPY.
                let ClientInfo {
                    canonical_facts,
                    catalog_service_facts,
                    dispatchers,
                    tags,
                    ..
                } = &row.reported;
                let message_id = row.message_id.as_ref().map_or("", MessageId::as_str);
                let (sent, at) = (row.message_sent, row.heard.at);
                let _ = writeln!(
                    text,
                    "{}\t10000\t111000\tstatus\thost\tredhat/insights\t{canonical_facts}\t{catalog_service_facts}\t{dispatchers}\t{tags}\t\t\t{message_id}\t{sent}\t{at}\t0\t7\tt\t{at}\t{at}\t{at}",
                    row.client_id
                );
            }
            text.into_bytes()
        })
        .collect()
}

/// Copies the batches, each committed by itself; rows a second.
pub async fn copy(connection: &mut PgConnection, batches: &[Vec<u8>], rows: usize) -> Result<f64> {
    let started = Instant::now();
    for batch in batches {
        let mut copy = connection.copy_in_raw(COPY).await?;
        copy.send(batch.as_slice()).await?;
        copy.finish().await?;
    }
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}
