//! Tests of the rows that an online message causes.

use super::*;
use domain::OrgId;
use serde_json::json;
use store::{ReceivedAt, RowVersion, StoredConnection, StoredDisconnect};

fn time_at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn tenant(org: &str) -> Tenant {
    Tenant {
        org_id: OrgId::new(org).unwrap(),
        account: String::new(),
    }
}

fn info(version: &str, dispatcher: &str) -> ClientInfo {
    ClientInfo {
        dispatchers: json!({dispatcher: {}}),
        client_version: version.to_owned(),
        ..ClientInfo::default()
    }
}

fn presence(info: &ClientInfo) -> PresenceColumns {
    PresenceColumns {
        connected_since: Some(time_at(100)),
        last_seen: Some(time_at(150)),
        reconnects: 3,
        hourly_reconnects: 2,
        hourly_reconnects_since: Some(time_at(90)),
        transition_count: 7,
        content_hashes: Some(ContentHashes::new(info)),
    }
}

fn connected(org: Option<&str>, info: &ClientInfo) -> StoredState {
    StoredState {
        connection: Some(StoredConnection {
            message_id: None,
            message_sent_at: time_at(100),
            tenant: org.map(tenant),
            received_at: ReceivedAt::from_time(time_at(100)),
            offline_message_overruled: false,
            last_heartbeat_at: None,
            version: RowVersion {
                updated_at: time_at(100),
                search_hash: None,
            },
            presence: presence(info),
        }),
        ..StoredState::default()
    }
}

fn disconnected(org: Option<&str>, info: &ClientInfo) -> StoredState {
    StoredState {
        disconnect: Some(StoredDisconnect {
            message_id: None,
            message_sent_at: time_at(100),
            tenant: org.map(tenant),
            received_at: ReceivedAt::from_time(time_at(100)),
            presence: presence(info),
        }),
        ..StoredState::default()
    }
}

/// Applies an online message at second 200.
fn apply(
    state: Option<&StoredState>,
    org: Option<&str>,
    info: &ClientInfo,
    counts: (u64, u64),
) -> OnlineRows {
    OnlineChange {
        client: &ClientId::new("c").unwrap(),
        info,
        stored_state: state,
        tenant: org.map(tenant).as_ref(),
        received_at: time_at(200),
        now: time_at(201),
        last_seen: time_at(200),
        writes_events: true,
        counts: TransitionCounts {
            all: counts.0,
            connects: counts.1,
            takeovers: 0,
        },
    }
    .rows()
}

/// Applies an online message at second 200 whose connection replaced another one.
fn apply_takeover(state: &StoredState, org: Option<&str>, info: &ClientInfo) -> OnlineRows {
    OnlineChange {
        client: &ClientId::new("c").unwrap(),
        info,
        stored_state: Some(state),
        tenant: org.map(tenant).as_ref(),
        received_at: time_at(200),
        now: time_at(201),
        last_seen: time_at(200),
        writes_events: true,
        counts: TransitionCounts {
            all: 1,
            connects: 1,
            takeovers: 1,
        },
    }
    .rows()
}

/// Returns number, organization and transition of each history row, and type and organization of each event.
type Summary = (Vec<(u64, String, Transition)>, Vec<(&'static str, String)>);

fn summary(rows: &OnlineRows) -> Summary {
    let history = rows.history.iter();
    let events = rows.events.iter();
    (
        history
            .map(|row| (row.number, row.org_id().to_owned(), row.transition))
            .collect(),
        events
            .map(|event| (event.event_type, event.tenant.org_id.to_string()))
            .collect(),
    )
}

const CONNECTED: Transition = Transition::Online(OnlineCause::Connected);

#[test]
fn a_new_client_is_online_and_has_no_reconnects() {
    let rows = apply(None, Some("1"), &info("1", "echo"), (1, 1));
    let expected = (
        vec![(1, "1".to_owned(), CONNECTED)],
        vec![(event_data::ONLINE, "1".to_owned())],
    );
    assert_eq!(summary(&rows), expected);
    assert_eq!(
        (rows.presence.reconnects, rows.presence.transition_count),
        (0, 1)
    );
    assert_eq!(rows.presence.connected_since, Some(time_at(200)));
    assert_eq!(rows.presence.hourly_reconnects_since, None);
    assert_eq!(rows.events[0].data["cause"], "connected");
}

/// The clock of the host was wrong, so the receive times of the client are raised.
#[test]
fn history_and_events_are_never_later_than_their_batch() {
    let (client, tenant) = (ClientId::new("c").unwrap(), tenant("1"));
    let change = OnlineChange {
        client: &client,
        info: &info("1", "a"),
        stored_state: None,
        tenant: Some(&tenant),
        received_at: time_at(5000),
        now: time_at(300),
        last_seen: time_at(5000),
        writes_events: true,
        counts: TransitionCounts {
            all: 1,
            connects: 1,
            takeovers: 0,
        },
    };
    let rows = change.rows();
    assert_eq!(rows.history[0].at, time_at(300));
    assert_eq!(rows.events[0].at, time_at(300));
}

#[test]
fn no_event_is_built_if_the_store_writes_none() {
    let (old, new) = (info("1", "a"), info("2", "b"));
    let state = connected(Some("1"), &old);
    for (tenant, expected_history) in [(Some(tenant("1")), 0), (Some(tenant("2")), 2), (None, 1)] {
        let mut change = OnlineChange {
            client: &ClientId::new("c").unwrap(),
            info: &new,
            stored_state: Some(&state),
            tenant: tenant.as_ref(),
            received_at: time_at(200),
            now: time_at(201),
            last_seen: time_at(200),
            writes_events: true,
            counts: TransitionCounts::default(),
        };
        let with_events = change.rows();
        assert!(!with_events.events.is_empty());
        change.writes_events = false;
        let without_events = change.rows();
        assert_eq!(without_events.events, []);
        assert_eq!(without_events.history, with_events.history);
        assert_eq!(without_events.history.len(), expected_history);
    }
}

/// The Go implementation deletes rows without their history.
#[test]
fn numbers_continue_after_the_history_of_a_deleted_row() {
    let state = StoredState {
        latest_transition: 57,
        ..StoredState::default()
    };
    let rows = apply(Some(&state), Some("1"), &info("1", "a"), (1, 1));
    assert_eq!(rows.presence.transition_count, 58);
    assert_eq!(rows.history[0].number, 58);
    assert_eq!(rows.presence.reconnects, 0);

    // The Go implementation has inserted a row, and not deleted the row of the disconnected client.
    let info = info("1", "a");
    let mut state = connected(Some("1"), &info);
    let connection = state.connection.as_mut().unwrap();
    connection.presence.transition_count = 0;
    state.disconnect = disconnected(Some("1"), &info).disconnect;
    let rows = apply_takeover(&state, Some("1"), &info);
    assert_eq!(rows.history[0].number, 8);
}

#[test]
fn a_client_that_comes_back_counts_a_reconnect() {
    let info = info("1", "echo");
    let rows = apply(
        Some(&disconnected(Some("1"), &info)),
        Some("1"),
        &info,
        (1, 1),
    );
    assert_eq!(summary(&rows).0, [(8, "1".to_owned(), CONNECTED)]);
    assert_eq!(
        (rows.presence.reconnects, rows.presence.hourly_reconnects),
        (4, 3)
    );
    assert_eq!(rows.presence.hourly_reconnects_since, Some(time_at(90)));
}

#[test]
fn an_unchanged_connected_client_has_no_history_and_no_event() {
    let info = info("1", "echo");
    let rows = apply(Some(&connected(Some("1"), &info)), Some("1"), &info, (4, 2));
    assert_eq!(summary(&rows), (vec![], vec![]));
    // The counters contain the merged transitions.
    assert_eq!(
        (rows.presence.reconnects, rows.presence.transition_count),
        (5, 11)
    );
    assert_eq!(rows.presence.connected_since, Some(time_at(100)));
}

#[test]
fn changed_content_of_a_connected_client_is_an_update() {
    let state = connected(Some("1"), &info("1", "echo"));
    let rows = apply(Some(&state), Some("1"), &info("2", "echo"), (0, 0));
    assert_eq!(summary(&rows).1, [(event_data::UPDATED, "1".to_owned())]);
    assert_eq!(rows.events[0].data["changed"], json!(["client_version"]));
    assert!(!rows.events[0].dispatchers_changed);
    let rows = apply(Some(&state), Some("1"), &info("1", "other"), (0, 0));
    assert!(rows.events[0].dispatchers_changed);
    assert!(rows.history.is_empty());
}

#[test]
fn a_client_that_moves_is_offline_for_the_old_organization_and_online_for_the_new_one() {
    let info = info("1", "echo");
    let rows = apply(Some(&connected(Some("1"), &info)), Some("2"), &info, (0, 0));
    let expected = (
        vec![
            (8, "1".to_owned(), Transition::Offline(OfflineReason::Moved)),
            (9, "2".to_owned(), CONNECTED),
        ],
        vec![
            (event_data::OFFLINE, "1".to_owned()),
            (event_data::ONLINE, "2".to_owned()),
        ],
    );
    assert_eq!(summary(&rows), expected);
    assert_eq!(rows.events[0].data["connected_for"], 100);
    assert_eq!(
        (rows.presence.reconnects, rows.presence.transition_count),
        (0, 9)
    );
}

#[test]
fn the_store_adds_the_last_dispatchers_to_the_offline_event_of_a_client_that_moves() {
    let state = connected(Some("1"), &info("1", "old"));
    for new_org in [Some("2"), None] {
        let rows = apply(Some(&state), new_org, &info("1", "new"), (0, 0));
        assert!(rows.events[0].dispatchers_changed);
        assert!(!rows.events[0].data.to_string().contains("new"));
    }
}

#[test]
fn a_takeover_is_only_in_the_history() {
    let info = info("1", "echo");
    let rows = apply_takeover(&connected(Some("1"), &info), Some("1"), &info);
    assert_eq!(
        summary(&rows),
        (vec![(8, "1".to_owned(), Transition::Takeover)], vec![])
    );
    assert_eq!(rows.presence.connected_since, Some(time_at(100)));
    assert_eq!(
        (rows.presence.reconnects, rows.presence.hourly_reconnects),
        (4, 3)
    );
    // The transitions between organizations say more than the takeover.
    let rows = apply_takeover(&connected(Some("1"), &info), Some("2"), &info);
    let reasons: Vec<_> = rows
        .history
        .iter()
        .map(|row| row.transition.reason())
        .collect();
    assert_eq!(reasons, ["moved", "connected"]);
}

#[test]
fn a_row_of_an_earlier_version_is_connected_since_its_latest_online_message() {
    let info = info("1", "echo");
    let mut state = connected(Some("1"), &info);
    state.connection.as_mut().unwrap().presence = PresenceColumns::default();
    let rows = apply(Some(&state), Some("1"), &info, (0, 0));
    assert_eq!(summary(&rows), (vec![], vec![]));
    assert_eq!(rows.presence.connected_since, Some(time_at(100)));
    let rows = apply(Some(&state), Some("2"), &info, (0, 0));
    assert_eq!(rows.events[0].data["connected_for"], 100);
}

#[test]
fn a_lost_tenant_is_offline_and_a_found_tenant_is_online() {
    let info = info("1", "echo");
    let rows = apply(Some(&connected(Some("1"), &info)), None, &info, (0, 0));
    let lost = Transition::Offline(OfflineReason::TenantLost);
    assert_eq!(
        summary(&rows),
        (
            vec![(8, "1".to_owned(), lost)],
            vec![(event_data::OFFLINE, "1".to_owned())]
        )
    );
    let rows = apply(Some(&connected(None, &info)), Some("1"), &info, (0, 0));
    let found = Transition::Online(OnlineCause::TenantFound);
    assert_eq!(
        summary(&rows),
        (
            vec![(8, "1".to_owned(), found)],
            vec![(event_data::ONLINE, "1".to_owned())]
        )
    );
}

#[test]
fn a_tenantless_client_has_history_but_no_events() {
    let info = info("1", "echo");
    let rows = apply(None, None, &info, (1, 1));
    assert_eq!(
        summary(&rows),
        (vec![(1, String::new(), CONNECTED)], vec![])
    );
    let rows = apply(Some(&connected(None, &info)), None, &info, (0, 0));
    assert_eq!(summary(&rows), (vec![], vec![]));
}
