//! Tests of the rules in the module documentation of `presence`.

use super::*;
use domain::{ClientInfo, ClientKind, IngestStamp};
use serde_json::json;
use store::{PresenceColumns, QueuePosition, RowVersion, StoredConnection, StoredDisconnect};

const RULES: PresenceRules = PresenceRules {
    stale_online_window: Duration::from_mins(10),
    last_seen_interval: Duration::from_mins(5),
};

/// Returns the time that is `second` seconds after an arbitrary start time.
fn time_at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn client_info(tag: &str) -> ClientInfo {
    ClientInfo {
        catalog_service_facts: json!(null),
        dispatchers: json!(null),
        tags: json!({ "tag": tag }),
        ..ClientInfo::default()
    }
}

/// Returns a receive time without a queue position, for a message that came directly from a broker.
fn received_from_broker_at(second: i64) -> ReceivedAt {
    ReceivedAt::from_time(time_at(second))
}

fn online_signal(
    message_id: &str,
    sent_second: Option<i64>,
    received_at_seconds: i64,
) -> PresenceSignal {
    PresenceSignal::Online {
        online: Box::new(OnlineMessage {
            kind: ClientKind::Host,
            message_id: MessageId::new(message_id).ok(),
            sent: sent_second.map(time_at),
            info: client_info(message_id),
        }),
        dialect: protocol::status::NAME,
        topic_prefix: "p".into(),
        received_at: received_from_broker_at(received_at_seconds),
        replay_kind: ReplayKind::NotReplayed,
        is_takeover: false,
        input_index: 0,
    }
}

fn as_retained_message(signal: PresenceSignal) -> PresenceSignal {
    with_replay_kind(signal, ReplayKind::RetainedByBroker)
}

fn with_replay_kind(mut signal: PresenceSignal, kind: ReplayKind) -> PresenceSignal {
    if let PresenceSignal::Online { replay_kind, .. } = &mut signal {
        *replay_kind = kind;
    }
    signal
}

fn with_kafka_offset(signal: PresenceSignal, offset: i64) -> PresenceSignal {
    with_queue_position(signal, None, offset)
}

fn with_queue_position(
    mut signal: PresenceSignal,
    topic: Option<i64>,
    offset: i64,
) -> PresenceSignal {
    if let PresenceSignal::Online { received_at, .. }
    | PresenceSignal::Offline { received_at, .. } = &mut signal
    {
        received_at.position = Some(QueuePosition {
            topic,
            partition: 0,
            offset,
        });
    }
    signal
}

fn offline_signal(received_at_seconds: i64) -> PresenceSignal {
    PresenceSignal::Offline {
        received_at: received_from_broker_at(received_at_seconds),
        sent: None,
        is_last_will: None,
    }
}

impl PresenceChange {
    fn offline_received_at(&self) -> Option<ReceivedAt> {
        self.offline.map(|offline| offline.received_at)
    }
}

fn heartbeat_signal(received_at_seconds: i64) -> PresenceSignal {
    PresenceSignal::Heartbeat {
        received_at: received_from_broker_at(received_at_seconds),
        from_answers_topic: false,
    }
}

fn answers_topic_heartbeat_signal(received_at_seconds: i64) -> PresenceSignal {
    PresenceSignal::Heartbeat {
        received_at: received_from_broker_at(received_at_seconds),
        from_answers_topic: true,
    }
}

fn connected_state(message_id: &str, sent_second: i64) -> StoredState {
    StoredState {
        connection: Some(StoredConnection {
            message_id: MessageId::new(message_id).ok(),
            message_sent_at: time_at(sent_second),
            tenant: None,
            received_at: received_from_broker_at(sent_second),
            offline_message_overruled: false,
            last_heartbeat_at: None,
            version: RowVersion {
                updated_at: time_at(sent_second),
                search_hash: None,
            },
            presence: PresenceColumns {
                last_seen: Some(time_at(sent_second)),
                ..PresenceColumns::default()
            },
        }),
        ..StoredState::default()
    }
}

/// Returns a client that is connected only because its heartbeat is later than its offline message.
fn state_connected_by_heartbeat(
    message_id: &str,
    offline_second: i64,
    heartbeat_second: i64,
) -> StoredState {
    let mut stored_state = connected_state(message_id, offline_second);
    let connection = stored_state.connection.as_mut().unwrap();
    connection.offline_message_overruled = true;
    connection.last_heartbeat_at = Some(received_from_broker_at(heartbeat_second));
    stored_state
}

fn disconnected_state(message_id: &str, sent_second: i64, offline_second: i64) -> StoredState {
    StoredState {
        disconnect: Some(StoredDisconnect {
            message_id: MessageId::new(message_id).ok(),
            message_sent_at: time_at(sent_second),
            tenant: None,
            received_at: received_from_broker_at(offline_second),
            presence: PresenceColumns::default(),
        }),
        ..StoredState::default()
    }
}

fn apply_to_state(
    stored_state: Option<&StoredState>,
    signals: &[PresenceSignal],
) -> (PresenceChange, Vec<IgnoreReason>) {
    let mut ignore_reasons = Vec::new();
    let change = apply_signals(stored_state, signals.to_vec(), RULES, |_, reason| {
        ignore_reasons.push(reason);
    });
    (change, ignore_reasons)
}

/// Returns `message_id` and `sent` of the online message that connects the client.
fn connecting_message_id_and_sent(change: &PresenceChange) -> (&str, Timestamp) {
    match change {
        PresenceChange {
            upsert: Some(applied),
            offline: None,
            ..
        } => (
            applied
                .online
                .message_id
                .as_ref()
                .map_or("", MessageId::as_str),
            applied.sent,
        ),
        other => panic!("not connected: {other:?}"),
    }
}

#[test]
fn last_online_message_of_a_batch_connects_the_client() {
    let (change, ignore_reasons) = apply_to_state(
        None,
        &[
            online_signal("a", Some(1), 5),
            offline_signal(5),
            online_signal("b", Some(2), 6),
        ],
    );
    assert_eq!(connecting_message_id_and_sent(&change), ("b", time_at(2)));
    assert!(ignore_reasons.is_empty());
}

#[test]
fn online_message_with_the_stored_message_id_is_a_duplicate() {
    let (change, ignore_reasons) = apply_to_state(
        Some(&connected_state("a", 1)),
        &[online_signal("a", Some(9), 9)],
    );
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignore_reasons, [IgnoreReason::Duplicate]);
}

#[test]
fn online_message_without_message_id_is_never_a_duplicate() {
    let (change, _) = apply_to_state(
        Some(&connected_state("", 1)),
        &[online_signal("", Some(9), 9)],
    );
    assert_eq!(connecting_message_id_and_sent(&change), ("", time_at(9)));
}

#[test]
fn online_message_sent_up_to_ten_minutes_before_the_stored_message_is_stale() {
    let (change, ignore_reasons) = apply_to_state(
        Some(&connected_state("b", 601)),
        &[online_signal("a", Some(1), 700)],
    );
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignore_reasons, [IgnoreReason::Stale]);
}

#[test]
fn online_message_sent_over_ten_minutes_before_the_stored_message_is_applied() {
    let (change, _) = apply_to_state(
        Some(&connected_state("b", 602)),
        &[online_signal("a", Some(1), 700)],
    );
    assert_eq!(connecting_message_id_and_sent(&change), ("a", time_at(1)));
}

#[test]
fn online_message_of_an_ingest_host_whose_clock_is_behind_is_not_stale() {
    for sent_second in [Some(705), None] {
        let online = with_kafka_offset(online_signal("a", sent_second, 675), 9);
        let (change, ignore_reasons) = apply_to_state(Some(&connected_state("b", 700)), &[online]);
        assert_eq!(ignore_reasons, []);
        assert_eq!(connecting_message_id_and_sent(&change), ("a", time_at(675)));
    }
}

#[test]
fn sent_time_in_the_future_is_replaced_by_the_receive_time() {
    let (change, _) = apply_to_state(None, &[online_signal("a", Some(9_000_000), 10)]);
    assert_eq!(connecting_message_id_and_sent(&change), ("a", time_at(10)));
    let (change, _) = apply_to_state(
        Some(&connected_state("a", 10)),
        &[online_signal("b", Some(11), 12)],
    );
    assert_eq!(connecting_message_id_and_sent(&change), ("b", time_at(11)));
}

#[test]
fn missing_sent_time_is_replaced_by_the_receive_time() {
    let (change, _) = apply_to_state(None, &[online_signal("a", None, 10)]);
    assert_eq!(connecting_message_id_and_sent(&change), ("a", time_at(10)));
}

#[test]
fn offline_message_is_never_stale_and_a_later_online_message_is_applied() {
    let (change, _) = apply_to_state(Some(&connected_state("a", 100)), &[offline_signal(101)]);
    assert_eq!(
        change.offline_received_at(),
        Some(received_from_broker_at(101))
    );
    let (change, ignore_reasons) = apply_to_state(
        Some(&connected_state("a", 100)),
        &[offline_signal(5), online_signal("a", Some(99), 101)],
    );
    assert_eq!(connecting_message_id_and_sent(&change), ("a", time_at(99)));
    assert!(ignore_reasons.is_empty());
}

#[test]
fn redelivery_of_the_last_messages_gives_the_same_state() {
    let signals = [
        online_signal("a", Some(1), 1),
        offline_signal(5),
        online_signal("b", Some(2), 2),
        online_signal("c", Some(3), 3),
    ];
    // The counted transitions differ, because the messages are applied again.
    let apply = |state: Option<&StoredState>, signals: &[PresenceSignal]| PresenceChange {
        transitions: TransitionCounts::default(),
        ..apply_to_state(state, signals).0
    };
    let expected = apply(None, &signals);
    for start in 0..signals.len() {
        let change = apply(Some(&connected_state("c", 3)), &signals[start..]);
        if change != PresenceChange::default() {
            assert_eq!(change, expected, "redelivered from message {start}");
        }
    }
}

#[test]
fn online_and_offline_messages_of_one_batch_are_both_written() {
    let (change, _) = apply_to_state(None, &[online_signal("a", Some(1), 1), offline_signal(2)]);
    assert!(change.upsert.is_some());
    assert_eq!(
        change.offline_received_at(),
        Some(received_from_broker_at(2))
    );
}

#[test]
fn retained_handshake_is_ignored_after_its_connection_has_ended() {
    let stored_state = disconnected_state("h1", 1, 5);
    let (change, ignore_reasons) = apply_to_state(
        Some(&stored_state),
        &[as_retained_message(online_signal("h1", Some(1), 9))],
    );
    assert_eq!(
        (change, ignore_reasons),
        (
            PresenceChange::default(),
            vec![IgnoreReason::ReplayOfEndedHandshake]
        )
    );
    // The handshake is applied if the client sends it again. A retained handshake with another
    // message id is also applied.
    let (change, _) = apply_to_state(Some(&stored_state), &[online_signal("h1", Some(1), 9)]);
    assert_eq!(connecting_message_id_and_sent(&change).0, "h1");
    let (change, _) = apply_to_state(
        Some(&stored_state),
        &[as_retained_message(online_signal("h2", Some(1), 9))],
    );
    assert_eq!(connecting_message_id_and_sent(&change).0, "h2");
    // The retained handshake is also ignored if all messages are in one batch.
    let (change, ignore_reasons) = apply_to_state(
        None,
        &[
            online_signal("h1", Some(1), 1),
            offline_signal(2),
            as_retained_message(online_signal("h1", Some(1), 3)),
        ],
    );
    assert_eq!(
        change.offline_received_at(),
        Some(received_from_broker_at(2))
    );
    assert_eq!(ignore_reasons, [IgnoreReason::ReplayOfEndedHandshake]);
}

#[test]
fn operator_replay_is_ignored_if_a_presence_message_was_received_later() {
    let operator_replay = |received_at_seconds| {
        with_replay_kind(
            online_signal("replayed", Some(1), received_at_seconds),
            ReplayKind::RequestedByOperator,
        )
    };
    for stored_state in [
        connected_state("new", 100),
        disconnected_state("new", 100, 100),
    ] {
        let (change, ignore_reasons) = apply_to_state(Some(&stored_state), &[operator_replay(100)]);
        assert_eq!(
            (change, ignore_reasons),
            (PresenceChange::default(), vec![IgnoreReason::Stale])
        );
    }
    let (change, _) = apply_to_state(None, &[operator_replay(100)]);
    assert_eq!(connecting_message_id_and_sent(&change).0, "replayed");
    let (change, _) = apply_to_state(
        Some(&disconnected_state("a", 1, 99)),
        &[operator_replay(100)],
    );
    assert_eq!(connecting_message_id_and_sent(&change).0, "replayed");
}

#[test]
fn messages_without_a_queue_position_stay_in_order_if_the_clock_is_set_back() {
    let (change, _) = apply_to_state(
        Some(&connected_state("a", 100)),
        &[offline_signal(90), heartbeat_signal(91)],
    );
    let (offline_at, heartbeat_at) = (
        change.offline_received_at().unwrap().time,
        change.heartbeat_received_at.unwrap().time,
    );
    assert!(time_at(100) < offline_at && offline_at < heartbeat_at);
    let (change, _) = apply_to_state(
        Some(&connected_state("a", 100)),
        &[online_signal("b", None, 90), offline_signal(80)],
    );
    assert!(change.offline_received_at().unwrap().time > change.upsert.unwrap().received_at.time);
}

#[test]
fn heartbeat_reconnects_a_disconnected_client_but_does_not_register_an_unknown_client() {
    let (change, _) = apply_to_state(Some(&disconnected_state("a", 1, 5)), &[heartbeat_signal(9)]);
    assert_eq!(
        (change.heartbeat_received_at, change.needs_tenant_lookup),
        (Some(received_from_broker_at(9)), true)
    );
    assert_eq!(
        apply_to_state(None, &[heartbeat_signal(9)]).0,
        PresenceChange::default()
    );
    assert_eq!(
        apply_to_state(Some(&connected_state("a", 1)), &[heartbeat_signal(9)]).0,
        PresenceChange::default()
    );
    // The heartbeat also reconnects the client if this host's clock was set back after the offline
    // message.
    let (change, _) = apply_to_state(Some(&disconnected_state("a", 1, 5)), &[heartbeat_signal(2)]);
    assert!(change.needs_tenant_lookup);
    assert!(change.heartbeat_received_at.unwrap().time > time_at(5));
    // If an offline message and a later heartbeat are in one batch, both messages are written.
    let (change, _) = apply_to_state(
        Some(&connected_state("a", 1)),
        &[offline_signal(5), heartbeat_signal(9)],
    );
    assert_eq!(
        (change.heartbeat_received_at, change.needs_tenant_lookup),
        (Some(received_from_broker_at(9)), false)
    );
    assert_eq!(
        change.offline_received_at(),
        Some(received_from_broker_at(5))
    );
}

#[test]
fn online_message_with_an_old_sent_time_is_applied_after_an_offline_message_and_a_heartbeat() {
    let stored_state = state_connected_by_heartbeat("a", 100, 110);
    let (change, ignore_reasons) =
        apply_to_state(Some(&stored_state), &[online_signal("b", Some(99), 111)]);
    assert_eq!(connecting_message_id_and_sent(&change).0, "b");
    assert!(ignore_reasons.is_empty());
}

#[test]
fn offline_message_without_a_queue_position_ends_a_connection_that_a_heartbeat_restored() {
    let stored_state = state_connected_by_heartbeat("a", 100, 110);
    // This host's clock was set back. So the offline message has an earlier receive time than the
    // heartbeat.
    let (change, ignore_reasons) = apply_to_state(Some(&stored_state), &[offline_signal(105)]);
    assert_eq!(
        (change.offline_received_at(), change.needs_tenant_lookup),
        (Some(received_from_broker_at(110)), false)
    );
    assert!(ignore_reasons.is_empty());
    let (change, _) = apply_to_state(
        Some(&stored_state),
        &[PresenceSignal::ConnectionClosed {
            closed_at: time_at(120),
            reason: OfflineReason::Will,
        }],
    );
    assert_eq!(
        change.offline_received_at(),
        Some(received_from_broker_at(120))
    );
}

#[test]
fn processing_order_of_a_heartbeat_and_an_offline_message_does_not_matter() {
    let offline_at_5 = with_kafka_offset(offline_signal(5), 5);
    let offline_at_7 = with_kafka_offset(offline_signal(7), 7);
    // The heartbeat was received before the offline message: the connection ends.
    for signals in [
        [answers_topic_heartbeat_signal(6), offline_at_7.clone()],
        [offline_at_7, answers_topic_heartbeat_signal(6)],
    ] {
        let (change, _) = apply_to_state(Some(&connected_state("a", 1)), &signals);
        assert_eq!(change.offline_received_at().unwrap().time, time_at(7));
        assert_eq!(
            (change.heartbeat_received_at, change.needs_tenant_lookup),
            (None, false)
        );
    }
    // The heartbeat was received after the offline message: the client stays connected.
    for signals in [
        [answers_topic_heartbeat_signal(6), offline_at_5.clone()],
        [offline_at_5.clone(), answers_topic_heartbeat_signal(6)],
    ] {
        let (change, _) = apply_to_state(Some(&connected_state("a", 1)), &signals);
        assert_eq!(change.offline_received_at().unwrap().time, time_at(5));
        assert_eq!(
            (change.heartbeat_received_at, change.needs_tenant_lookup),
            (Some(received_from_broker_at(6)), false)
        );
    }
    // A heartbeat is ignored if it has the same receive time as the last presence message.
    for stored_state in [disconnected_state("a", 1, 5), connected_state("a", 5)] {
        let (change, ignore_reasons) =
            apply_to_state(Some(&stored_state), &[answers_topic_heartbeat_signal(5)]);
        assert_eq!(
            (change, ignore_reasons),
            (PresenceChange::default(), vec![IgnoreReason::Superseded])
        );
    }
    // A second offline message is stored, because a heartbeat that was received between the two
    // offline messages must be ignored.
    let (change, _) = apply_to_state(Some(&disconnected_state("a", 1, 2)), &[offline_at_5]);
    assert_eq!(change.offline_received_at().unwrap().time, time_at(5));
}

#[test]
fn message_with_an_offset_up_to_the_stored_offset_is_ignored_as_redelivered() {
    // The client's clock was set back after each message. If messages were compared only by `sent`,
    // a redelivery of b and c would apply b and ignore c as stale.
    let signals = [
        with_kafka_offset(online_signal("a", Some(1000), 2001), 1),
        with_kafka_offset(online_signal("b", Some(500), 2002), 2),
        with_kafka_offset(online_signal("c", Some(300), 2003), 3),
    ];
    let (change, ignore_reasons) = apply_to_state(None, &signals);
    assert_eq!(connecting_message_id_and_sent(&change).0, "c");
    assert_eq!(ignore_reasons, [IgnoreReason::Stale]);
    let applied = change.upsert.unwrap();
    let mut stored_state = connected_state("c", 300);
    stored_state.connection.as_mut().unwrap().received_at = applied.received_at;
    let (change, ignore_reasons) = apply_to_state(Some(&stored_state), &signals[1..]);
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignore_reasons, [IgnoreReason::Redelivered; 2]);
    // Offsets restart in a recreated topic. A message with a lower offset but a later receive time
    // is new.
    let (change, _) = apply_to_state(
        Some(&stored_state),
        &[with_kafka_offset(online_signal("d", Some(3000), 3000), 1)],
    );
    assert_eq!(connecting_message_id_and_sent(&change).0, "d");
}

#[test]
fn topic_ids_decide_whether_a_message_with_a_lower_offset_is_redelivered() {
    let old_topic = with_queue_position(online_signal("a", None, 100), Some(1), 50);
    // The ingest host of the second message has a slow clock, and no message has a stamp.
    let ignore_reasons = |topic| {
        let second = with_queue_position(offline_signal(60), topic, 3);
        let (_, ignore_reasons) = apply_to_state(None, &[old_topic.clone(), second]);
        ignore_reasons
    };
    assert_eq!(ignore_reasons(Some(2)), []);
    assert_eq!(ignore_reasons(Some(1)), [IgnoreReason::Redelivered]);
    assert_eq!(ignore_reasons(None), [IgnoreReason::Redelivered]);
    // In the same topic, a later receive time does not make a redelivered message new.
    let later = with_queue_position(offline_signal(130), Some(1), 3);
    let (_, ignore_reasons) = apply_to_state(None, &[old_topic, later]);
    assert_eq!(ignore_reasons, [IgnoreReason::Redelivered]);
}

/// Returns the stamp of a message of the session 1. The position in the session is `position`.
#[expect(
    clippy::unnecessary_wraps,
    reason = "every caller needs an optional stamp"
)]
fn stamp_at(epoch: i64, position: i64) -> Option<IngestStamp> {
    Some(IngestStamp {
        session: 1,
        epoch,
        sequence: position,
    })
}

fn with_stamp(mut signal: PresenceSignal, stamp: Option<IngestStamp>) -> PresenceSignal {
    match &mut signal {
        PresenceSignal::Online { received_at, .. }
        | PresenceSignal::Offline { received_at, .. }
        | PresenceSignal::Heartbeat { received_at, .. } => received_at.stamp = stamp,
        PresenceSignal::ConnectionClosed { .. } => {}
    }
    signal
}

#[test]
fn stamps_of_one_session_decide_despite_the_receive_times() {
    let is_connected = |heartbeat_stamp, offline_stamp| {
        // The receive times say that the heartbeat is later.
        let heartbeat = with_stamp(answers_topic_heartbeat_signal(50), heartbeat_stamp);
        let offline = with_kafka_offset(offline_signal(20), 5);
        let offline = with_stamp(offline, offline_stamp);
        [[heartbeat.clone(), offline.clone()], [offline, heartbeat]].map(|signals| {
            let (change, _) = apply_to_state(Some(&connected_state("a", 1)), &signals);
            change.heartbeat_received_at.is_some()
        })
    };
    assert_eq!(is_connected(stamp_at(1, 9), stamp_at(2, 1)), [false; 2]);
    assert_eq!(is_connected(stamp_at(1, 1), stamp_at(1, 2)), [false; 2]);
    assert_eq!(is_connected(stamp_at(1, 2), stamp_at(1, 1)), [true; 2]);
    assert_eq!(is_connected(stamp_at(1, 1), None), [true; 2]);
    assert_eq!(is_connected(None, stamp_at(1, 1)), [true; 2]);
    let other_session = stamp_at(1, 1).map(|stamp| IngestStamp {
        session: 2,
        ..stamp
    });
    assert_eq!(is_connected(other_session, stamp_at(2, 2)), [true; 2]);
}

#[test]
fn closed_connection_and_operator_replay_have_no_stamp_so_their_times_decide() {
    let mut stored_state = state_connected_by_heartbeat("a", 10, 20);
    let connection = stored_state.connection.as_mut().unwrap();
    connection.received_at.stamp = stamp_at(1, 1);
    connection.last_heartbeat_at.as_mut().unwrap().stamp = stamp_at(1, 2);
    let closed = PresenceSignal::ConnectionClosed {
        closed_at: time_at(30),
        reason: OfflineReason::Will,
    };
    let (change, _) = apply_to_state(Some(&stored_state), &[closed]);
    assert_eq!(
        change.offline_received_at(),
        Some(received_from_broker_at(30))
    );
    let replay = with_replay_kind(online_signal("b", None, 5), ReplayKind::RequestedByOperator);
    let (change, ignore_reasons) = apply_to_state(Some(&stored_state), &[replay]);
    assert_eq!(change, PresenceChange::default());
    assert_eq!(ignore_reasons, [IgnoreReason::Stale]);
}

#[test]
fn redelivered_message_of_a_host_with_a_fast_clock_is_detected_by_its_stamp() {
    let fast = with_stamp(
        with_kafka_offset(online_signal("a", None, 90), 5),
        stamp_at(1, 1),
    );
    let accurate = with_stamp(with_kafka_offset(offline_signal(20), 6), stamp_at(2, 1));
    let (_, ignore_reasons) = apply_to_state(None, &[fast.clone(), accurate, fast]);
    assert_eq!(ignore_reasons, [IgnoreReason::Redelivered]);
}

#[test]
fn messages_that_a_replaced_ingest_process_writes_late_are_ignored() {
    let signal_at = |signal, offset, stamp| with_stamp(with_kafka_offset(signal, offset), stamp);
    // The first process received both messages at 10 and 11, and wrote them to Kafka after the second
    // process, to which the broker redelivered them.
    let signals = [
        signal_at(online_signal("a", None, 20), 1, stamp_at(2, 1)),
        signal_at(offline_signal(21), 2, stamp_at(2, 2)),
        signal_at(online_signal("a", None, 10), 3, stamp_at(1, 8)),
        signal_at(offline_signal(11), 4, stamp_at(1, 9)),
    ];
    let (change, ignore_reasons) = apply_to_state(None, &signals[..3]);
    assert_eq!(ignore_reasons, [IgnoreReason::Redelivered]);
    assert!(
        change.offline_received_at().is_some(),
        "the client stays disconnected"
    );
    let reconnected = signal_at(online_signal("b", None, 30), 5, stamp_at(2, 3));
    let signals = [signals[0].clone(), reconnected, signals[3].clone()];
    let (change, ignore_reasons) = apply_to_state(None, &signals);
    assert_eq!(ignore_reasons, [IgnoreReason::Redelivered]);
    assert_eq!(
        change.offline_received_at(),
        None,
        "the client stays connected"
    );
}

#[test]
fn a_later_message_with_a_lower_stamp_is_applied() {
    // The process with the higher epoch acquired the epoch only after it had lost its session.
    let signals = [
        with_stamp(
            with_kafka_offset(online_signal("a", None, 10), 1),
            stamp_at(2, 1),
        ),
        with_stamp(with_kafka_offset(offline_signal(20), 2), stamp_at(1, 1)),
    ];
    let (change, ignore_reasons) = apply_to_state(None, &signals);
    assert_eq!(ignore_reasons, []);
    assert!(change.offline_received_at().is_some());
}

/// The kind of a message in [`every_processing_order_has_the_result_of_the_true_order`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Online,
    Offline,
    Heartbeat,
}

/// Five messages of every combination of kinds, which two hosts with different clocks forward in
/// turn, and every order in which the two Kafka topics can be processed.
#[test]
fn every_processing_order_has_the_result_of_the_true_order() {
    const KINDS: [Kind; 3] = [Kind::Online, Kind::Offline, Kind::Heartbeat];
    const COUNT: u32 = 5;
    let stored_state = connected_state("initial", 0);
    for combination in 0..3_usize.pow(COUNT) {
        let kinds: Vec<Kind> = (0..COUNT)
            .map(|position| KINDS[combination / 3_usize.pow(position) % 3])
            .collect();
        // The second host takes over before the third message.
        for second_clock in [-50, 0, 50] {
            let signals: Vec<PresenceSignal> = (1_i64..)
                .zip(&kinds)
                .map(|(position, kind)| skewed_signal(position, *kind, second_clock))
                .collect();
            let is_heartbeat = |position: &usize| kinds[*position] == Kind::Heartbeat;
            let (heartbeats, presence): (Vec<usize>, Vec<usize>) =
                (0..kinds.len()).partition(is_heartbeat);
            let last_presence = presence.last();
            let is_connected = heartbeats.last() > last_presence
                || last_presence.is_none_or(|last| kinds[*last] == Kind::Online);
            for order in interleavings(&presence, &heartbeats) {
                let ordered: Vec<_> = order.iter().map(|index| signals[*index].clone()).collect();
                let (change, _) = apply_to_state(Some(&stored_state), &ordered);
                let applied = change.upsert.and_then(|upsert| upsert.last_heartbeat_at);
                let is_connected_after =
                    change.offline.is_none() || applied.or(change.heartbeat_received_at).is_some();
                assert_eq!(
                    is_connected_after, is_connected,
                    "{kinds:?} in the order {order:?}, second clock {second_clock}"
                );
            }
        }
    }
}

/// Returns the message at this position of the true order. The second host forwards the messages
/// from position 3 on.
fn skewed_signal(position: i64, kind: Kind, second_clock: i64) -> PresenceSignal {
    let (epoch, clock_offset) = if position < 3 {
        (1, 0)
    } else {
        (2, second_clock)
    };
    let received_at = 1000 + position * 10 + clock_offset;
    let signal = match kind {
        Kind::Online => online_signal(&format!("m{position}"), None, received_at),
        Kind::Offline => offline_signal(received_at),
        Kind::Heartbeat => answers_topic_heartbeat_signal(received_at),
    };
    with_stamp(
        with_kafka_offset(signal, position),
        stamp_at(epoch, position),
    )
}

/// Returns all orders of the elements of both lists that keep the order of each list.
fn interleavings(first: &[usize], second: &[usize]) -> Vec<Vec<usize>> {
    let (Some((first_head, first_tail)), Some((second_head, second_tail))) =
        (first.split_first(), second.split_first())
    else {
        return vec![[first, second].concat()];
    };
    let prepend = |head: &usize, orders: Vec<Vec<usize>>| -> Vec<Vec<usize>> {
        let orders = orders.into_iter();
        orders
            .map(|order| [&[*head], &order[..]].concat())
            .collect()
    };
    let mut orders = prepend(first_head, interleavings(first_tail, second));
    orders.extend(prepend(second_head, interleavings(first, second_tail)));
    orders
}

#[test]
fn the_reason_of_an_offline_message_distinguishes_a_last_will() {
    let state = connected_state("a", 100);
    let reason_of = |signal: PresenceSignal| {
        let (change, _) = apply_to_state(Some(&state), &[signal]);
        change.offline.unwrap().reason
    };
    let offline = |sent: Option<i64>, is_last_will, position| {
        let mut received_at = received_from_broker_at(200);
        received_at.position = position;
        PresenceSignal::Offline {
            received_at,
            sent: sent.map(time_at),
            is_last_will,
        }
    };
    let position = Some(QueuePosition {
        topic: None,
        partition: 0,
        offset: 7,
    });
    // The embedded broker tells which message is a last will.
    let (will, client) = (OfflineReason::Will, OfflineReason::Client);
    assert_eq!(reason_of(offline(Some(1), Some(false), None)), client);
    assert_eq!(reason_of(offline(Some(1), Some(true), None)), will);
    assert_eq!(reason_of(offline(Some(150), Some(true), None)), will);
    // Messages of an external broker, with and without Kafka: a last will was built before the online
    // message.
    for position in [None, position] {
        assert_eq!(reason_of(offline(Some(99), None, position)), will);
        assert_eq!(reason_of(offline(Some(150), None, position)), client);
        assert_eq!(reason_of(offline(None, None, position)), client);
    }
}

#[test]
fn transitions_are_counted_without_the_last_one_of_a_connection_that_ends() {
    let counts = |state: Option<&StoredState>, signals: &[PresenceSignal]| {
        let (change, _) = apply_to_state(state, signals);
        (change.transitions.all, change.transitions.connects)
    };
    let connected = connected_state("a", 1);
    let disconnected = disconnected_state("a", 1, 2);
    let online = |id: &str, second| online_signal(id, Some(second), second);
    assert_eq!(counts(None, &[online("b", 5)]), (1, 1));
    assert_eq!(counts(Some(&connected), &[online("b", 5)]), (0, 0));
    assert_eq!(counts(Some(&disconnected), &[online("b", 5)]), (1, 1));
    let storm = [
        offline_signal(5),
        online("b", 6),
        offline_signal(7),
        online("c", 8),
    ];
    assert_eq!(counts(Some(&connected), &storm), (4, 2));
    assert_eq!(counts(Some(&connected), &storm[..3]), (2, 1));
    assert_eq!(
        counts(Some(&disconnected), &[online("b", 5), offline_signal(6)]),
        (1, 1)
    );
}

#[test]
fn the_time_of_an_ignored_heartbeat_is_stored_if_the_stored_time_is_old() {
    let mut state = connected_state("a", 100);
    let seen_at = |state: &StoredState, second| {
        let (change, _) = apply_to_state(Some(state), &[heartbeat_signal(second)]);
        change.seen_at
    };
    assert_eq!(seen_at(&state, 399), None);
    assert_eq!(seen_at(&state, 400), Some(time_at(400)));
    state.connection.as_mut().unwrap().presence.last_seen = None;
    assert_eq!(seen_at(&state, 110), Some(time_at(110)));
    let signals = [heartbeat_signal(500), online_signal("b", Some(501), 501)];
    let (change, _) = apply_to_state(Some(&state), &signals);
    assert_eq!(change.seen_at, None);
}

#[test]
fn takeover_counts_as_a_reconnect_of_a_connected_client_only() {
    let takeover = |message_id, second| {
        let mut signal = online_signal(message_id, None, second);
        if let PresenceSignal::Online { is_takeover, .. } = &mut signal {
            *is_takeover = true;
        }
        signal
    };
    let counts = |signals| apply_signals(None, signals, RULES, |_, _| {}).transitions;
    let first_only = counts(vec![takeover("a", 1)]);
    assert_eq!((first_only.all, first_only.takeovers), (1, 0));
    let signals = vec![
        online_signal("a", None, 1),
        takeover("b", 2),
        takeover("c", 3),
    ];
    let expected = TransitionCounts {
        all: 3,
        connects: 3,
        takeovers: 2,
    };
    assert_eq!(counts(signals), expected);
    // A message with the id of the last one is a duplicate.
    let repeated = counts(vec![online_signal("a", None, 1), takeover("a", 2)]);
    assert_eq!(repeated.takeovers, 0);
}
