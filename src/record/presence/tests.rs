//! Tests of the ordering rules in the header of `presence`.

use super::*;
use crate::domain::{ClientInfo, ClientKind};
use crate::store::{QueuePosition, StoredConnection, StoredDisconnect};
use serde_json::json;

const STALE_ONLINE_WINDOW: Duration = Duration::from_mins(10);

/// Returns the time that many seconds after an arbitrary start.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn client_info(tag: &str) -> ClientInfo {
    ClientInfo {
        canonical_facts: json!({}),
        catalog_service_facts: json!(null),
        dispatchers: json!(null),
        tags: json!({ "tag": tag }),
        client_name: String::new(),
        client_version: String::new(),
    }
}

/// A receive time without a queue position: the message came directly from a broker.
fn received(second: i64) -> ReceivedAt {
    ReceivedAt {
        time: at(second),
        position: None,
    }
}

fn online(id: &str, sent: Option<i64>, received_second: i64) -> PresenceSignal {
    PresenceSignal::Online {
        online: Box::new(Online {
            kind: ClientKind::Host,
            message_id: MessageId::new(id).ok(),
            sent: sent.map(at),
            info: client_info(id),
        }),
        dialect: Dialect::Status,
        topic_prefix: "p".into(),
        received: received(received_second),
        replay: ReplayKind::NotReplayed,
        input_index: 0,
    }
}

fn retained(signal: PresenceSignal) -> PresenceSignal {
    with_replay(signal, ReplayKind::RetainedByBroker)
}

fn with_replay(mut signal: PresenceSignal, kind: ReplayKind) -> PresenceSignal {
    if let PresenceSignal::Online { replay, .. } = &mut signal {
        *replay = kind;
    }
    signal
}

fn at_offset(mut signal: PresenceSignal, offset: i64) -> PresenceSignal {
    if let PresenceSignal::Online { received, .. } | PresenceSignal::Offline { received } =
        &mut signal
    {
        received.position = Some(QueuePosition {
            partition: 0,
            offset,
        });
    }
    signal
}

fn offline(received_second: i64) -> PresenceSignal {
    PresenceSignal::Offline {
        received: received(received_second),
    }
}

fn heartbeat(received_second: i64) -> PresenceSignal {
    PresenceSignal::Heartbeat {
        received_at: at(received_second),
        unordered: false,
    }
}

fn unordered_heartbeat(received_second: i64) -> PresenceSignal {
    PresenceSignal::Heartbeat {
        received_at: at(received_second),
        unordered: true,
    }
}

fn connected(id: &str, sent: i64) -> StoredState {
    StoredState {
        connection: Some(StoredConnection {
            message_id: MessageId::new(id).ok(),
            message_sent: at(sent),
            tenant: None,
            received: received(sent),
            offline_overruled: false,
            last_heartbeat_at: None,
        }),
        disconnect: None,
    }
}

/// A client that is connected only because its heartbeat is later than its offline message.
fn connected_by_heartbeat(id: &str, offline_second: i64, heartbeat_second: i64) -> StoredState {
    let mut stored = connected(id, offline_second);
    let connection = stored.connection.as_mut().unwrap();
    connection.offline_overruled = true;
    connection.last_heartbeat_at = Some(at(heartbeat_second));
    stored
}

fn disconnected(id: &str, sent: i64, offline_second: i64) -> StoredState {
    StoredState {
        connection: None,
        disconnect: Some(StoredDisconnect {
            message_id: MessageId::new(id).ok(),
            message_sent: at(sent),
            tenant: None,
            received: received(offline_second),
        }),
    }
}

fn run(stored: Option<&StoredState>, signals: &[PresenceSignal]) -> (PresenceChange, Vec<Ignored>) {
    let mut ignored = Vec::new();
    let change = apply(stored, signals.to_vec(), STALE_ONLINE_WINDOW, |reason| {
        ignored.push(reason);
    });
    (change, ignored)
}

/// Returns `message_id` and `sent` of the online message that connects the client.
fn connected_by(change: &PresenceChange) -> (&str, Timestamp) {
    match change {
        PresenceChange {
            upsert: Some(resolved),
            end: None,
            ..
        } => (
            resolved
                .online
                .message_id
                .as_ref()
                .map_or("", MessageId::as_str),
            resolved.sent,
        ),
        other => panic!("not connected: {other:?}"),
    }
}

#[test]
fn last_online_of_a_batch_wins() {
    let (change, ignored) = run(
        None,
        &[online("a", Some(1), 5), offline(5), online("b", Some(2), 6)],
    );
    assert_eq!(connected_by(&change), ("b", at(2)));
    assert!(ignored.is_empty());
}

#[test]
fn online_with_the_stored_message_id_is_a_duplicate() {
    let (change, ignored) = run(Some(&connected("a", 1)), &[online("a", Some(9), 9)]);
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignored, [Ignored::Duplicate]);
}

#[test]
fn empty_message_id_is_never_a_duplicate() {
    let (change, _) = run(Some(&connected("", 1)), &[online("", Some(9), 9)]);
    assert_eq!(connected_by(&change), ("", at(9)));
}

#[test]
fn online_sent_within_the_window_before_the_stored_one_is_stale() {
    let (change, ignored) = run(Some(&connected("b", 601)), &[online("a", Some(1), 700)]);
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignored, [Ignored::Stale]);
}

#[test]
fn online_sent_before_the_window_is_applied() {
    let (change, _) = run(Some(&connected("b", 602)), &[online("a", Some(1), 700)]);
    assert_eq!(connected_by(&change), ("a", at(1)));
}

#[test]
fn future_sent_is_clamped_to_the_receive_time() {
    let (change, _) = run(None, &[online("a", Some(9_000_000), 10)]);
    assert_eq!(connected_by(&change), ("a", at(10)));
    let (change, _) = run(Some(&connected("a", 10)), &[online("b", Some(11), 12)]);
    assert_eq!(connected_by(&change), ("b", at(11)));
}

#[test]
fn missing_sent_is_the_receive_time() {
    let (change, _) = run(None, &[online("a", None, 10)]);
    assert_eq!(connected_by(&change), ("a", at(10)));
}

#[test]
fn offline_is_never_stale_and_online_after_it_is_applied() {
    let (change, _) = run(Some(&connected("a", 100)), &[offline(101)]);
    assert_eq!(change.end, Some(received(101)));
    let (change, ignored) = run(
        Some(&connected("a", 100)),
        &[offline(5), online("a", Some(99), 101)],
    );
    assert_eq!(connected_by(&change), ("a", at(99)));
    assert!(ignored.is_empty());
}

#[test]
fn repeating_the_last_messages_gives_the_same_state() {
    let signals = [
        online("a", Some(1), 1),
        offline(5),
        online("b", Some(2), 2),
        online("c", Some(3), 3),
    ];
    let (expected, _) = run(None, &signals);
    for start in 0..signals.len() {
        let (change, _) = run(Some(&connected("c", 3)), &signals[start..]);
        if change != PresenceChange::default() {
            assert_eq!(change, expected, "repeated from message {start}");
        }
    }
}

#[test]
fn online_and_offline_in_one_batch_are_both_written() {
    let (change, _) = run(None, &[online("a", Some(1), 1), offline(2)]);
    assert!(change.upsert.is_some());
    assert_eq!(change.end, Some(received(2)));
}

#[test]
fn retained_replay_of_an_ended_handshake_is_ignored() {
    let stored = disconnected("h1", 1, 5);
    let (change, ignored) = run(Some(&stored), &[retained(online("h1", Some(1), 9))]);
    assert_eq!(
        (change, ignored),
        (
            PresenceChange::default(),
            vec![Ignored::ReplayOfEndedHandshake]
        )
    );
    // The same handshake is applied if it is not a replay, and so is the replay of another one.
    let (change, _) = run(Some(&stored), &[online("h1", Some(1), 9)]);
    assert_eq!(connected_by(&change).0, "h1");
    let (change, _) = run(Some(&stored), &[retained(online("h2", Some(1), 9))]);
    assert_eq!(connected_by(&change).0, "h2");
    // The rule also holds within one batch.
    let (change, ignored) = run(
        None,
        &[
            online("h1", Some(1), 1),
            offline(2),
            retained(online("h1", Some(1), 3)),
        ],
    );
    assert_eq!(change.end, Some(received(2)));
    assert_eq!(ignored, [Ignored::ReplayOfEndedHandshake]);
}

#[test]
fn operator_replay_is_ignored_after_a_newer_presence_message() {
    let operator_replay = |received_second| {
        with_replay(
            online("replayed", Some(1), received_second),
            ReplayKind::RequestedByOperator,
        )
    };
    for stored in [connected("new", 100), disconnected("new", 100, 100)] {
        let (change, ignored) = run(Some(&stored), &[operator_replay(100)]);
        assert_eq!(
            (change, ignored),
            (PresenceChange::default(), vec![Ignored::Stale])
        );
    }
    let (change, _) = run(None, &[operator_replay(100)]);
    assert_eq!(connected_by(&change).0, "replayed");
    let (change, _) = run(Some(&disconnected("a", 1, 99)), &[operator_replay(100)]);
    assert_eq!(connected_by(&change).0, "replayed");
}

#[test]
fn clock_set_back_keeps_the_order_of_messages_without_a_queue_position() {
    let (change, _) = run(Some(&connected("a", 100)), &[offline(90), heartbeat(91)]);
    let (offline_at, heartbeat_at) = (change.end.unwrap().time, change.heartbeat.unwrap());
    assert!(at(100) < offline_at && offline_at < heartbeat_at);
    let (change, _) = run(
        Some(&connected("a", 100)),
        &[online("b", None, 90), offline(80)],
    );
    assert!(change.end.unwrap().time > change.upsert.unwrap().received.time);
}

#[test]
fn heartbeat_reconnects_a_disconnected_client_and_registers_no_unknown_one() {
    let (change, _) = run(Some(&disconnected("a", 1, 5)), &[heartbeat(9)]);
    assert_eq!(
        (change.heartbeat, change.needs_tenant_lookup),
        (Some(at(9)), true)
    );
    assert_eq!(run(None, &[heartbeat(9)]).0, PresenceChange::default());
    assert_eq!(
        run(Some(&connected("a", 1)), &[heartbeat(9)]).0,
        PresenceChange::default()
    );
    // The heartbeat also counts if the clock was set back after the offline message.
    let (change, _) = run(Some(&disconnected("a", 1, 5)), &[heartbeat(2)]);
    assert!(change.needs_tenant_lookup && change.heartbeat > Some(at(5)));
    // In one batch, both the offline message and the heartbeat after it are written.
    let (change, _) = run(Some(&connected("a", 1)), &[offline(5), heartbeat(9)]);
    assert_eq!(
        (change.heartbeat, change.needs_tenant_lookup),
        (Some(at(9)), false)
    );
    assert_eq!(change.end, Some(received(5)));
}

#[test]
fn online_after_an_offline_and_a_heartbeat_is_applied_whatever_its_sent() {
    let stored = connected_by_heartbeat("a", 100, 110);
    let (change, ignored) = run(Some(&stored), &[online("b", Some(99), 111)]);
    assert_eq!(connected_by(&change).0, "b");
    assert!(ignored.is_empty());
}

#[test]
fn offline_without_a_queue_position_ends_a_connection_kept_by_a_heartbeat() {
    let stored = connected_by_heartbeat("a", 100, 110);
    // The receive time is before the heartbeat, as after a clock that was set back.
    let (change, ignored) = run(Some(&stored), &[offline(105)]);
    assert_eq!(
        (change.end, change.needs_tenant_lookup),
        (Some(received(110)), false)
    );
    assert!(ignored.is_empty());
    let (change, _) = run(
        Some(&stored),
        &[PresenceSignal::ConnectionClosed { at: at(120) }],
    );
    assert_eq!(change.end, Some(received(120)));
}

#[test]
fn heartbeat_and_offline_give_the_same_result_in_either_processing_order() {
    let offline_at_5 = at_offset(offline(5), 5);
    let offline_at_7 = at_offset(offline(7), 7);
    // The heartbeat was received before the offline message: the connection ends.
    for signals in [
        [unordered_heartbeat(6), offline_at_7.clone()],
        [offline_at_7, unordered_heartbeat(6)],
    ] {
        let (change, _) = run(Some(&connected("a", 1)), &signals);
        assert_eq!(change.end.unwrap().time, at(7));
        assert_eq!(
            (change.heartbeat, change.needs_tenant_lookup),
            (None, false)
        );
    }
    // The heartbeat was received after the offline message: the client stays connected.
    for signals in [
        [unordered_heartbeat(6), offline_at_5.clone()],
        [offline_at_5.clone(), unordered_heartbeat(6)],
    ] {
        let (change, _) = run(Some(&connected("a", 1)), &signals);
        assert_eq!(change.end.unwrap().time, at(5));
        assert_eq!(
            (change.heartbeat, change.needs_tenant_lookup),
            (Some(at(6)), false)
        );
    }
    // A heartbeat that was not received after the last presence message is ignored.
    for stored in [disconnected("a", 1, 5), connected("a", 5)] {
        let (change, ignored) = run(Some(&stored), &[unordered_heartbeat(5)]);
        assert_eq!(
            (change, ignored),
            (PresenceChange::default(), vec![Ignored::Superseded])
        );
    }
    // A second offline message is stored: a heartbeat received between the two must be ignored.
    let (change, _) = run(Some(&disconnected("a", 1, 2)), &[offline_at_5]);
    assert_eq!(change.end.unwrap().time, at(5));
}

#[test]
fn message_at_or_before_the_stored_offset_is_redelivered() {
    // The client's clock was set back after each message. By `sent` alone, repeating b and c would
    // apply b and ignore c as stale.
    let signals = [
        at_offset(online("a", Some(1000), 2001), 1),
        at_offset(online("b", Some(500), 2002), 2),
        at_offset(online("c", Some(300), 2003), 3),
    ];
    let (change, ignored) = run(None, &signals);
    assert_eq!(connected_by(&change).0, "c");
    assert_eq!(ignored, [Ignored::Stale]);
    let resolved = change.upsert.unwrap();
    let mut stored = connected("c", 300);
    stored.connection.as_mut().unwrap().received = resolved.received;
    let (change, ignored) = run(Some(&stored), &signals[1..]);
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignored, [Ignored::Redelivered; 2]);
    // In a recreated topic, offsets restart: a later receive time shows that the message is new.
    let (change, _) = run(
        Some(&stored),
        &[at_offset(online("d", Some(3000), 3000), 1)],
    );
    assert_eq!(connected_by(&change).0, "d");
}
