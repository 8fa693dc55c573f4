//! Facts for the tests of the explanation.

use std::time::Duration;

use super::explanation::ClientFacts;
use crate::LookupRetries;
use domain::{
    BrokerRejection, ClientId, ClientInfo, ClientKind, OfflineReason, OrgId, Tenant, Timestamp,
};
use store::{ClientRecord, ClientStatus, HistoryEntry, StoredDeadLetter};

/// The current time of the tests, in seconds since 1970.
const NOW: i64 = 1_700_000_000;

pub(super) fn seconds_ago(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds).unwrap()
}

/// Returns a time as the sentences contain it.
pub(super) fn text(seconds: i64) -> String {
    seconds_ago(seconds).to_string()
}

pub(super) fn org(id: &str) -> OrgId {
    OrgId::new(id).unwrap()
}

/// Returns a client of organization 1 that has been connected for 600 seconds.
pub(super) fn connected() -> ClientRecord {
    ClientRecord {
        client_id: ClientId::new("a").unwrap(),
        tenant: Some(Tenant {
            org_id: org("1"),
            account: String::new(),
        }),
        dialect: "status".to_owned().into(),
        kind: ClientKind::Host,
        topic_prefix: "p".to_owned(),
        info: ClientInfo::default(),
        status: ClientStatus::Connected,
        connected_since: seconds_ago(600),
        last_seen: seconds_ago(5),
        reconnects: 0,
        hourly_reconnects: 0,
        hourly_reconnects_since: None,
        failed_lookups: 0,
        last_lookup_at: None,
    }
}

/// Returns a client of organization 1 that disconnected 300 seconds ago.
pub(super) fn disconnected(reason: Option<OfflineReason>) -> ClientRecord {
    ClientRecord {
        status: ClientStatus::Disconnected {
            at: seconds_ago(300),
            reason,
        },
        ..connected()
    }
}

/// Returns a connected client without an organization.
pub(super) fn tenantless(failed_lookups: u32) -> ClientRecord {
    ClientRecord {
        tenant: None,
        failed_lookups,
        last_lookup_at: Some(seconds_ago(60)),
        ..connected()
    }
}

pub(super) fn entry(org_id: &str, seconds: i64, status: &str, reason: &str) -> HistoryEntry {
    HistoryEntry {
        number: u64::try_from(NOW - seconds).unwrap(),
        at: seconds_ago(seconds),
        org: OrgId::new(org_id).ok(),
        status: status.to_owned(),
        reason: reason.to_owned(),
    }
}

pub(super) fn rejection(reason: &str, seconds: i64) -> BrokerRejection {
    BrokerRejection {
        reason: reason.to_owned(),
        peer: "192.0.2.7:5000".to_owned(),
        at: seconds_ago(seconds),
    }
}

pub(super) fn dead_letter(seconds: i64) -> StoredDeadLetter {
    StoredDeadLetter {
        id: 17,
        client: ClientId::new("a").ok(),
        topic: "p/a/control/out".to_owned(),
        payload: bytes::Bytes::new(),
        payload_size: 0,
        sha256: String::new(),
        reason: "invalid_json".to_owned(),
        detail: "expected value at line 1".to_owned(),
        occurrences: 1,
        first_received: seconds_ago(seconds),
        last_received: seconds_ago(seconds),
        replay_requested_at: None,
    }
}

/// Returns the facts about a client in embedded mode.
pub(super) fn facts(record: Option<&ClientRecord>) -> ClientFacts<'_> {
    ClientFacts {
        now: seconds_ago(0),
        record,
        history: &[],
        dead_letters: &[],
        rejections: Some(&[]),
        lookup_retries: LookupRetries {
            max_attempts: 30,
            retry_interval: Duration::from_mins(30),
        },
    }
}
