use super::*;

const A: SlowKey = SlowKey(1);
const B: SlowKey = SlowKey(2);

fn counts(forwarded: u64, durable: u64) -> MessageCounts {
    MessageCounts { forwarded, durable }
}

fn at(partition: i32, offset: i64) -> DeliveredAt {
    DeliveredAt { partition, offset }
}

fn progress(partition: i32, next: i64, end: i64) -> BTreeMap<i32, PartitionProgress> {
    let progress = PartitionProgress {
        next_offset: next,
        end_offset: end,
    };
    BTreeMap::from([(partition, progress)])
}

fn check(clients: &mut SlowClients, progress: &BTreeMap<i32, PartitionProgress>) {
    clients.on_check_started();
    clients.remove_recorded(progress);
}

fn slow(after_ingress: bool) -> Route {
    Route::Slow { after_ingress }
}

fn held(durable_before: u64, after_ingress: bool) -> Route {
    Route::Held {
        durable_before,
        after_ingress,
    }
}

#[test]
fn only_a_client_over_its_budget_becomes_slow_and_it_stays_slow_within_its_budget() {
    let mut clients = SlowClients::default();
    let idle = counts(5, 5);
    assert_eq!(clients.select_route(A, false, idle), (Route::Normal, false));
    assert_eq!(clients.select_route(A, true, idle), (slow(true), true));
    assert_eq!(clients.select_route(A, false, idle), (slow(false), false));
    assert_eq!(clients.select_route(B, false, idle), (Route::Normal, false));
}

#[test]
fn first_messages_are_held_until_all_earlier_messages_are_in_kafka() {
    let mut clients = SlowClients::default();
    let (route, _) = clients.select_route(A, true, counts(7, 4));
    assert_eq!(route, held(7, true));
    // The later messages follow the first one, also if the earlier messages are durable meanwhile.
    let (route, _) = clients.select_route(A, true, counts(9, 9));
    assert_eq!(route, held(7, false));
    clients.on_released(A);
    let (route, _) = clients.select_route(A, true, counts(10, 9));
    assert_eq!(route, held(7, false));
    clients.on_released(A);
    clients.on_released(A);
    let (route, _) = clients.select_route(A, true, counts(11, 9));
    assert_eq!(route, slow(false));
}

#[test]
fn client_returns_when_its_last_message_is_recorded() {
    let mut clients = SlowClients::default();
    clients.select_route(A, true, counts(0, 0));
    clients.select_route(A, true, counts(1, 0));
    clients.on_delivered(A, at(3, 10));
    // The second message is not in Kafka yet.
    check(&mut clients, &progress(3, 11, 11));
    assert_eq!(clients.len(), 1);
    clients.on_delivered(A, at(3, 11));
    check(&mut clients, &progress(3, 11, 12));
    assert_eq!(clients.len(), 1);
    check(&mut clients, &progress(3, 12, 12));
    assert!(clients.is_empty());
    // After its return, the client starts again with a marked message.
    let (route, _) = clients.select_route(A, true, counts(2, 2));
    assert_eq!(route, slow(true));
}

#[test]
fn messages_of_a_deleted_topic_do_not_keep_a_client_slow() {
    let mut clients = SlowClients::default();
    clients.select_route(A, true, counts(0, 0));
    clients.on_delivered(A, at(3, 500));
    check(&mut clients, &progress(3, 2, 2));
    assert!(clients.is_empty());
}

#[test]
fn check_that_started_before_a_delivery_does_not_let_the_client_return() {
    let mut clients = SlowClients::default();
    clients.select_route(A, true, counts(0, 0));
    clients.on_check_started();
    clients.on_delivered(A, at(3, 10));
    // The partition was empty when the check read its end.
    clients.remove_recorded(&progress(3, 10, 10));
    assert_eq!(clients.len(), 1);
    check(&mut clients, &progress(3, 11, 11));
    assert!(clients.is_empty());
}

#[test]
fn new_connection_continues_with_the_clients_that_have_unrecorded_messages() {
    let mut scanned = ScannedClients::default();
    scanned.add(A, at(0, 4));
    scanned.add(A, at(0, 5));
    let mut clients = SlowClients::from_scan(UnprocessedScan {
        collected: scanned,
        progress: progress(0, 4, 6),
        is_incomplete: false,
    });
    assert_eq!(
        clients.select_route(B, false, counts(3, 0)).0,
        Route::Normal
    );
    // No message of this connection is in another topic, so the message is not held.
    assert_eq!(clients.select_route(A, false, counts(3, 0)).0, slow(true));
    clients.on_delivered(A, at(0, 6));
    check(&mut clients, &progress(0, 6, 7));
    assert_eq!(clients.len(), 1);
    check(&mut clients, &progress(0, 7, 7));
    assert!(clients.is_empty());
}

#[test]
fn after_an_incomplete_scan_all_clients_are_slow_until_the_old_messages_are_recorded() {
    let mut clients = SlowClients::from_scan(UnprocessedScan {
        collected: ScannedClients::default(),
        progress: progress(0, 4, 6),
        is_incomplete: true,
    });
    assert!(!clients.is_empty());
    assert_eq!(clients.select_route(B, false, counts(0, 0)).0, slow(true));
    clients.on_delivered(B, at(0, 6));
    check(&mut clients, &progress(0, 6, 7));
    assert_eq!(
        clients.select_route(A, false, counts(1, 1)).0,
        Route::Normal
    );
    // Client B has a message in the slow topic that is not recorded.
    assert_eq!(clients.select_route(B, false, counts(2, 2)).0, slow(false));
}

#[test]
fn number_of_slow_clients_is_limited() {
    let mut clients = SlowClients::default();
    for number in 0..MAX_SLOW_CLIENTS as u64 {
        clients.select_route(SlowKey(number), true, counts(0, 0));
    }
    let (route, _) = clients.select_route(SlowKey(u64::MAX), true, counts(0, 0));
    assert_eq!(route, Route::Normal);
    let (route, _) = clients.select_route(SlowKey(0), false, counts(0, 0));
    assert_eq!(route, slow(false));
}

#[test]
fn too_many_keys_in_the_slow_topic_make_all_clients_slow() {
    let mut scanned = ScannedClients::default();
    for number in 0..=MAX_SLOW_CLIENTS as u64 {
        scanned.add(SlowKey(number), at(0, 1));
    }
    let mut clients = SlowClients::from_scan(UnprocessedScan {
        collected: scanned,
        progress: progress(0, 1, 2),
        is_incomplete: false,
    });
    let last = SlowKey(MAX_SLOW_CLIENTS as u64);
    assert_eq!(
        clients.select_route(last, false, counts(0, 0)).0,
        slow(true)
    );
}
