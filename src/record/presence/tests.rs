//! A client's messages, and what they end in.

use super::*;
use crate::domain::{ClientInfo, ClientKind};
use crate::store::{QueuePosition, StoredConnection, StoredDisconnect};
use serde_json::json;

const OLD: Duration = Duration::from_mins(10);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn reported(tag: &str) -> ClientInfo {
    ClientInfo {
        canonical_facts: json!({}),
        catalog_service_facts: json!(null),
        dispatchers: json!(null),
        tags: json!({ "tag": tag }),
        client_name: String::new(),
        client_version: String::new(),
    }
}

fn heard(second: i64) -> ReceivedAt {
    ReceivedAt {
        at: at(second),
        place: None,
    }
}

fn online(id: &str, sent: Option<i64>, received: i64) -> PresenceSignal {
    PresenceSignal::Online {
        online: Box::new(Online {
            kind: ClientKind::Host,
            message_id: MessageId::new(id).ok(),
            sent: sent.map(at),
            reported: reported(id),
        }),
        dialect: Dialect::Status,
        prefix: "p".into(),
        heard: heard(received),
        voice: ReplayKind::Now,
        event: 0,
    }
}

fn replay(step: PresenceSignal) -> PresenceSignal {
    said(step, ReplayKind::RetainedByBroker)
}

fn said(mut step: PresenceSignal, by: ReplayKind) -> PresenceSignal {
    if let PresenceSignal::Online { voice, .. } = &mut step {
        *voice = by;
    }
    step
}

/// At this place of the queue.
fn placed(mut step: PresenceSignal, offset: i64) -> PresenceSignal {
    if let PresenceSignal::Online { heard, .. } | PresenceSignal::Offline { heard } = &mut step {
        heard.place = Some(QueuePosition {
            partition: 0,
            offset,
        });
    }
    step
}

fn offline(received: i64) -> PresenceSignal {
    PresenceSignal::Offline {
        heard: heard(received),
    }
}

fn alive(received: i64) -> PresenceSignal {
    PresenceSignal::Alive {
        at: at(received),
        late: false,
    }
}

fn late(received: i64) -> PresenceSignal {
    PresenceSignal::Alive {
        at: at(received),
        late: true,
    }
}

fn row(id: &str, sent: i64) -> StoredState {
    StoredState {
        connected: Some(StoredConnection {
            message_id: MessageId::new(id).ok(),
            message_sent: at(sent),
            tenant: None,
            heard: heard(sent),
            has_left: false,
            last_heartbeat_at: None,
        }),
        departed: None,
    }
}

fn left(id: &str, sent: i64, when: i64) -> StoredState {
    StoredState {
        connected: None,
        departed: Some(StoredDisconnect {
            message_id: MessageId::new(id).ok(),
            message_sent: at(sent),
            tenant: None,
            heard: heard(when),
        }),
    }
}

fn run(known: Option<&StoredState>, steps: &[PresenceSignal]) -> (PresenceChange, Vec<Ignored>) {
    let mut skipped = Vec::new();
    let fate = apply(known, steps.to_vec(), OLD, |why| skipped.push(why));
    (fate, skipped)
}

fn connected_by(fate: &PresenceChange) -> (&str, Timestamp) {
    match fate {
        PresenceChange {
            arrival: Some(settled),
            departure: None,
            ..
        } => (
            settled
                .online
                .message_id
                .as_ref()
                .map_or("", MessageId::as_str),
            settled.sent,
        ),
        other => panic!("not connected: {other:?}"),
    }
}

#[test]
fn the_last_of_a_burst_wins() {
    let (fate, skipped) = run(
        None,
        &[online("a", Some(1), 5), offline(5), online("b", Some(2), 6)],
    );
    assert_eq!(connected_by(&fate), ("b", at(2)));
    assert!(skipped.is_empty());
}

#[test]
fn an_online_with_the_recorded_id_is_a_duplicate() {
    let (fate, skipped) = run(Some(&row("a", 1)), &[online("a", Some(9), 9)]);
    assert_eq!(fate, PresenceChange::default());
    assert_eq!(skipped, [Ignored::Duplicate]);
}

#[test]
fn an_empty_id_never_makes_a_duplicate() {
    let (fate, _) = run(Some(&row("", 1)), &[online("", Some(9), 9)]);
    assert_eq!(connected_by(&fate), ("", at(9)));
}

#[test]
fn an_online_sent_a_little_before_the_recorded_one_is_old() {
    let (fate, skipped) = run(Some(&row("b", 601)), &[online("a", Some(1), 700)]);
    assert_eq!(fate, PresenceChange::default());
    assert_eq!(skipped, [Ignored::Old]);
}

#[test]
fn further_back_the_clock_was_set_and_the_order_decides() {
    let (fate, _) = run(Some(&row("b", 602)), &[online("a", Some(1), 700)]);
    assert_eq!(connected_by(&fate), ("a", at(1)));
}

#[test]
fn a_clock_in_the_future_locks_nobody_out() {
    let (fate, _) = run(None, &[online("a", Some(9_000_000), 10)]);
    assert_eq!(connected_by(&fate), ("a", at(10)));
    let (fate, _) = run(Some(&row("a", 10)), &[online("b", Some(11), 12)]);
    assert_eq!(connected_by(&fate), ("b", at(11)));
}

#[test]
fn a_missing_clock_is_the_time_of_receipt() {
    let (fate, _) = run(None, &[online("a", None, 10)]);
    assert_eq!(connected_by(&fate), ("a", at(10)));
}

#[test]
fn an_offline_is_never_old_and_an_online_after_it_always_registers() {
    let (fate, _) = run(Some(&row("a", 100)), &[offline(101)]);
    assert_eq!(fate.departure, Some(heard(101)));
    let (fate, skipped) = run(
        Some(&row("a", 100)),
        &[offline(5), online("a", Some(99), 101)],
    );
    assert_eq!(connected_by(&fate), ("a", at(99)));
    assert!(skipped.is_empty());
}

#[test]
fn a_repeated_suffix_ends_in_the_same_state() {
    let steps = [
        online("a", Some(1), 1),
        offline(5),
        online("b", Some(2), 2),
        online("c", Some(3), 3),
    ];
    let (once, _) = run(None, &steps);
    for cut in 0..steps.len() {
        let (again, _) = run(Some(&row("c", 3)), &steps[cut..]);
        if again != PresenceChange::default() {
            assert_eq!(again, once, "from {cut}");
        }
    }
}

#[test]
fn who_came_and_went_in_one_batch_is_remembered() {
    let (fate, _) = run(None, &[online("a", Some(1), 1), offline(2)]);
    assert!(fate.arrival.is_some());
    assert_eq!(fate.departure, Some(heard(2)));
}

#[test]
fn a_replay_of_the_handshake_that_an_offline_ended_does_not_register_again() {
    let known = left("h1", 1, 5);
    let (fate, skipped) = run(Some(&known), &[replay(online("h1", Some(1), 9))]);
    assert_eq!(
        (fate, skipped),
        (
            PresenceChange::default(),
            vec![Ignored::ReplayOfEndedHandshake]
        )
    );
    // ClientMessage anew it does, and so does the replay of another one.
    let (fate, _) = run(Some(&known), &[online("h1", Some(1), 9)]);
    assert_eq!(connected_by(&fate).0, "h1");
    let (fate, _) = run(Some(&known), &[replay(online("h2", Some(1), 9))]);
    assert_eq!(connected_by(&fate).0, "h2");
    // Also within one batch.
    let (fate, skipped) = run(
        None,
        &[
            online("h1", Some(1), 1),
            offline(2),
            replay(online("h1", Some(1), 3)),
        ],
    );
    assert_eq!(fate.departure, Some(heard(2)));
    assert_eq!(skipped, [Ignored::ReplayOfEndedHandshake]);
}

#[test]
fn an_operators_replay_undoes_nothing_that_was_said_since() {
    let again = |received| {
        said(
            online("old", Some(1), received),
            ReplayKind::RequestedByOperator,
        )
    };
    for known in [row("new", 100), left("new", 100, 100)] {
        let (fate, skipped) = run(Some(&known), &[again(100)]);
        assert_eq!(
            (fate, skipped),
            (PresenceChange::default(), vec![Ignored::Old])
        );
    }
    assert_eq!(connected_by(&run(None, &[again(100)]).0).0, "old");
    let (fate, _) = run(Some(&left("a", 1, 99)), &[again(100)]);
    assert_eq!(connected_by(&fate).0, "old");
}

#[test]
fn a_clock_that_was_set_back_costs_no_client_its_connection() {
    // Straight from a broker: the order is all that counts.
    let (fate, _) = run(Some(&row("a", 100)), &[offline(90), alive(91)]);
    let (left, seen) = (fate.departure.unwrap().at, fate.sighting.unwrap());
    assert!(at(100) < left && left < seen);
    let (fate, _) = run(Some(&row("a", 100)), &[online("b", None, 90), offline(80)]);
    assert!(fate.departure.unwrap().at > fate.arrival.unwrap().heard.at);
}

#[test]
fn a_sign_of_life_brings_back_who_left_and_registers_nobody_else() {
    let (fate, _) = run(Some(&left("a", 1, 5)), &[alive(9)]);
    assert_eq!((fate.sighting, fate.comes), (Some(at(9)), true));
    assert_eq!(run(None, &[alive(9)]).0, PresenceChange::default());
    assert_eq!(
        run(Some(&row("a", 1)), &[alive(9)]).0,
        PresenceChange::default()
    );
    // Also where the clock was set back meanwhile.
    let (fate, _) = run(Some(&left("a", 1, 5)), &[alive(2)]);
    assert!(fate.comes && fate.sighting > Some(at(5)));
    // Away and back in one batch: the farewell is known, the sign of life holds it.
    let (fate, _) = run(Some(&row("a", 1)), &[offline(5), alive(9)]);
    assert_eq!((fate.sighting, fate.comes), (Some(at(9)), false));
    assert_eq!(fate.departure, Some(heard(5)));
}

#[test]
fn an_online_after_an_offline_registers_also_where_a_sign_of_life_came_between() {
    let mut known = row("a", 100);
    let row = known.connected.as_mut().unwrap();
    (row.has_left, row.last_heartbeat_at) = (true, Some(at(110)));
    let (fate, skipped) = run(Some(&known), &[online("b", Some(99), 111)]);
    assert_eq!(connected_by(&fate).0, "b");
    assert!(skipped.is_empty());
}

#[test]
fn straight_from_a_broker_an_offline_ends_what_a_sign_of_life_held() {
    let mut known = row("a", 100);
    let row = known.connected.as_mut().unwrap();
    (row.has_left, row.last_heartbeat_at) = (true, Some(at(110)));
    // Whatever the clock says.
    let (fate, skipped) = run(Some(&known), &[offline(105)]);
    assert_eq!((fate.departure, fate.comes), (Some(heard(110)), false));
    assert!(skipped.is_empty());
    let (fate, _) = run(
        Some(&known),
        &[PresenceSignal::ConnectionClosed { at: at(120) }],
    );
    assert_eq!(fate.departure, Some(heard(120)));
}

#[test]
fn a_sign_of_life_and_a_farewell_come_to_the_same_whichever_overtakes_the_other() {
    let early = placed(offline(5), 5);
    let later = placed(offline(7), 7);
    // The sign was first: the farewell ends it.
    for steps in [[late(6), later.clone()], [later, late(6)]] {
        let (fate, _) = run(Some(&row("a", 1)), &steps);
        assert_eq!(fate.departure.unwrap().at, at(7));
        assert_eq!((fate.sighting, fate.comes), (None, false));
    }
    // The farewell was first: the sign holds the client.
    for steps in [[late(6), early.clone()], [early.clone(), late(6)]] {
        let (fate, _) = run(Some(&row("a", 1)), &steps);
        assert_eq!(fate.departure.unwrap().at, at(5));
        assert_eq!((fate.sighting, fate.comes), (Some(at(6)), false));
    }
    // A sign from before the recorded farewell or online says nothing.
    for known in [left("a", 1, 5), row("a", 5)] {
        let (fate, skipped) = run(Some(&known), &[late(5)]);
        assert_eq!(
            (fate, skipped),
            (PresenceChange::default(), vec![Ignored::Superseded])
        );
    }
    // A second farewell is known_tenant, so that a sign from between the two says nothing.
    let (fate, _) = run(Some(&left("a", 1, 2)), &[early]);
    assert_eq!(fate.departure.unwrap().at, at(5));
}

#[test]
fn what_stood_in_the_queue_before_is_a_repetition_whatever_it_says() {
    // The clock was set back between b and c: by what they say alone, b would count again and
    // c would be old.
    let steps = [
        placed(online("a", Some(1000), 2001), 1),
        placed(online("b", Some(500), 2002), 2),
        placed(online("c", Some(300), 2003), 3),
    ];
    let (fate, skipped) = run(None, &steps);
    assert_eq!(connected_by(&fate).0, "c");
    assert_eq!(skipped, [Ignored::Old]);
    let settled = fate.arrival.unwrap();
    let mut known = row("c", 300);
    known.connected.as_mut().unwrap().heard = settled.heard;
    let (again, skipped) = run(Some(&known), &steps[1..]);
    assert_eq!(again, PresenceChange::default());
    assert_eq!(skipped, [Ignored::Redelivered; 2]);
    // A queue made anew starts over, and locks nobody out.
    let (fate, _) = run(Some(&known), &[placed(online("d", Some(3000), 3000), 1)]);
    assert_eq!(connected_by(&fate).0, "d");
}
