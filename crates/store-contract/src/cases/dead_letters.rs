//! Dead letters: insert, limits, filters, replay and purge.

use domain::RejectReason;
use store::{DeadLetter, DeadLetterFilter, DeadLetterLimits, PresenceBatch, StoredDeadLetter};
use test_support::stores::TestStore;

use crate::fixtures::{client, dead_letter, timestamp_at};

async fn insert_dead_letters(
    store: &TestStore,
    dead_letters: Vec<DeadLetter>,
    max_dead_letters_per_client: u32,
) {
    let batch = PresenceBatch {
        dead_letters,
        dead_letter_limits: DeadLetterLimits {
            max_dead_letters_per_client,
        },
        ..PresenceBatch::default()
    };
    store
        .presence
        .record_batch(&batch, &[], timestamp_at(1))
        .await
        .unwrap();
}

async fn list_dead_letters(store: &TestStore, filter: DeadLetterFilter) -> Vec<StoredDeadLetter> {
    store
        .dead_letters
        .list_dead_letters(&filter, 100)
        .await
        .unwrap()
}

async fn list_all_dead_letters(store: &TestStore) -> Vec<StoredDeadLetter> {
    list_dead_letters(store, DeadLetterFilter::default()).await
}

pub async fn equal_dead_letters_of_a_client_share_one_row(store: &TestStore) {
    let first_batch = vec![dead_letter("a", b"x", 1), dead_letter("b", b"x", 1)];
    insert_dead_letters(store, first_batch, 9).await;
    let second_batch = vec![dead_letter("a", b"x", 5), dead_letter("a", b"y", 5)];
    insert_dead_letters(store, second_batch, 9).await;
    let stored = list_all_dead_letters(store).await;
    assert_eq!(stored.len(), 3);
    let repeated = stored.iter().find(|d| d.occurrences == 2).unwrap();
    assert_eq!(repeated.client, Some(client("a")));
    assert_eq!(
        (repeated.first_received, repeated.last_received),
        (timestamp_at(1), timestamp_at(5))
    );
    let with_payload = store
        .dead_letters
        .find_dead_letter(repeated.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&with_payload.payload[..], b"x");
    assert!(with_payload.is_complete());
}

pub async fn oldest_dead_letters_above_the_client_limit_are_deleted(store: &TestStore) {
    let payloads: [&'static [u8]; 5] = [b"1", b"2", b"3", b"4", b"5"];
    let dead_letters = payloads.into_iter().zip(0..);
    let dead_letters = dead_letters.map(|(payload, second)| dead_letter("a", payload, second));
    insert_dead_letters(store, dead_letters.collect(), 2).await;
    let others = vec![dead_letter("", b"x", 9), dead_letter("b", b"x", 0)];
    insert_dead_letters(store, others, 2).await;
    let client_a_filter = DeadLetterFilter {
        client: Some(client("a")),
        ..DeadLetterFilter::default()
    };
    let stored = list_dead_letters(store, client_a_filter).await;
    let received_times: Vec<_> = stored.iter().map(|d| d.last_received).collect();
    assert_eq!(received_times.len(), 2);
    assert!(received_times.contains(&timestamp_at(4)) && received_times.contains(&timestamp_at(3)));
    assert_eq!(list_all_dead_letters(store).await.len(), 4);
}

pub async fn dead_letters_can_be_filtered_read_and_purged(store: &TestStore) {
    let mut truncated = dead_letter("a", b"first bytes", 1);
    truncated.payload_size = 3_000_000;
    truncated.reason = RejectReason::PayloadTooLarge;
    let binary_without_client = dead_letter("", b"\x00\xff\xfe", 2);
    insert_dead_letters(
        store,
        vec![truncated, binary_without_client, dead_letter("b", b"z", 3)],
        9,
    )
    .await;
    let reason_filter = DeadLetterFilter {
        reason: Some(RejectReason::PayloadTooLarge),
        ..DeadLetterFilter::default()
    };
    let found = list_dead_letters(store, reason_filter.clone()).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].reason, "payload_too_large");
    assert!(found[0].payload.is_empty(), "lists do not contain payloads");
    let truncated = store
        .dead_letters
        .find_dead_letter(found[0].id)
        .await
        .unwrap()
        .unwrap();
    assert!(!truncated.is_complete());
    let before_second_3 = DeadLetterFilter {
        received_before: Some(timestamp_at(3)),
        ..DeadLetterFilter::default()
    };
    let found = list_dead_letters(store, before_second_3).await;
    assert_eq!(found.len(), 2);
    let without_client = found.iter().find(|d| d.client.is_none()).unwrap();
    let binary = store
        .dead_letters
        .find_dead_letter(without_client.id)
        .await
        .unwrap();
    assert_eq!(&binary.unwrap().payload[..], b"\x00\xff\xfe");
    let purge = async |filter: &DeadLetterFilter, limit| {
        let purged = store.dead_letters.purge_dead_letters(filter, limit);
        purged.await.unwrap()
    };
    assert_eq!(purge(&reason_filter, 10).await, 1);
    let empty_filter = DeadLetterFilter::default();
    assert_eq!(purge(&empty_filter, 1).await, 1);
    assert_eq!(purge(&empty_filter, 1).await, 1);
    assert_eq!(purge(&empty_filter, 1).await, 0);
    let purged = store
        .dead_letters
        .find_dead_letter(without_client.id)
        .await
        .unwrap();
    assert_eq!(purged, None);
}

pub async fn finish_replay_keeps_a_dead_letter_that_was_rejected_again(store: &TestStore) {
    insert_dead_letters(
        store,
        vec![dead_letter("a", b"x", 1), dead_letter("a", b"y", 1)],
        9,
    )
    .await;
    let stored = list_all_dead_letters(store).await;
    for dead_letter in &stored {
        assert!(
            store
                .dead_letters
                .request_replay(dead_letter.id, timestamp_at(2))
                .await
                .unwrap()
        );
    }
    assert!(
        !store
            .dead_letters
            .request_replay(999_999, timestamp_at(2))
            .await
            .unwrap()
    );
    let replay_requested = DeadLetterFilter {
        replay_requested: true,
        ..DeadLetterFilter::default()
    };
    assert_eq!(
        list_dead_letters(store, replay_requested.clone())
            .await
            .len(),
        2
    );
    let sha256_of_x = dead_letter("a", b"x", 3).sha256;
    let is_x = |d: &&StoredDeadLetter| d.sha256 == sha256_of_x;
    let accepted = stored.iter().find(|d| !is_x(d)).unwrap();
    let rejected = stored.iter().find(is_x).unwrap();
    assert!(
        store
            .dead_letters
            .finish_replay(accepted.id, 1)
            .await
            .unwrap()
    );
    insert_dead_letters(store, vec![dead_letter("a", b"x", 3)], 9).await;
    assert!(
        !store
            .dead_letters
            .finish_replay(rejected.id, 1)
            .await
            .unwrap()
    );
    assert!(list_dead_letters(store, replay_requested).await.is_empty());
    assert_eq!(list_all_dead_letters(store).await[0].occurrences, 2);
}

/// Inserts `count` dead letters of a client with different payloads, at the seconds from
/// `first_second` on.
async fn insert_for_client(store: &TestStore, name: &str, count: i64, first_second: i64) {
    let dead_letters = (0..count).map(|number| {
        let payload = format!("{name} {number}").into_bytes();
        dead_letter(name, payload.leak(), first_second + number)
    });
    insert_dead_letters(store, dead_letters.collect(), 1000).await;
}

/// Returns the name of the client and the second of each dead letter, in ascending order.
async fn clients_and_seconds(store: &TestStore) -> Vec<(String, i64)> {
    let stored = list_all_dead_letters(store).await;
    let mut rows: Vec<_> = stored
        .iter()
        .map(|dead_letter| {
            let client = dead_letter.client.as_ref().map(ToString::to_string);
            let received = dead_letter.last_received.duration_since(timestamp_at(0));
            (client.unwrap_or_default(), received.as_secs())
        })
        .collect();
    rows.sort_unstable();
    rows
}

async fn enforce_limit(store: &TestStore, max_dead_letters: u64) -> u64 {
    store::enforce_dead_letter_limit(&*store.dead_letters, max_dead_letters)
        .await
        .unwrap()
}

pub async fn batches_do_not_delete_dead_letters_of_other_clients(store: &TestStore) {
    insert_dead_letters(store, vec![dead_letter("a", b"x", 0)], 2).await;
    for second in 1..=200 {
        let repeated = dead_letter("noisy", b"x", second);
        insert_dead_letters(store, vec![repeated], 2).await;
    }
    let expected = [("a".to_owned(), 0), ("noisy".to_owned(), 200)];
    assert_eq!(clients_and_seconds(store).await, expected);
    assert_eq!(enforce_limit(store, 2).await, 0, "ids are not counted");
}

pub async fn total_limit_deletes_the_oldest_of_the_clients_with_the_most(store: &TestStore) {
    insert_for_client(store, "old", 1, 0).await;
    insert_for_client(store, "", 4, 1).await;
    insert_for_client(store, "noisy", 8, 10).await;
    assert_eq!(enforce_limit(store, 13).await, 0);
    assert_eq!(enforce_limit(store, 7).await, 6);
    let row = |name: &str, second| (name.to_owned(), second);
    let expected = [
        row("", 2),
        row("", 3),
        row("", 4),
        row("noisy", 15),
        row("noisy", 16),
        row("noisy", 17),
        row("old", 0),
    ];
    assert_eq!(clients_and_seconds(store).await, expected);
}

pub async fn total_limit_below_the_number_of_clients_deletes_the_oldest(store: &TestStore) {
    for (name, second) in [("a", 30), ("b", 10), ("c", 20)] {
        insert_for_client(store, name, 2, second).await;
    }
    assert_eq!(enforce_limit(store, 2).await, 4);
    let expected = [("a".to_owned(), 31), ("c".to_owned(), 21)];
    assert_eq!(clients_and_seconds(store).await, expected);
}

pub async fn total_limit_is_enforced_for_many_clients_and_dead_letters(store: &TestStore) {
    for first_client in (0..1200).step_by(400) {
        let mut dead_letters = Vec::new();
        for number in first_client..first_client + 400 {
            for payload in [b"1", b"2", b"3"] {
                dead_letters.push(dead_letter(&format!("c{number}"), payload, number));
            }
        }
        insert_dead_letters(store, dead_letters, 1000).await;
    }
    assert_eq!(enforce_limit(store, 1300).await, 2300);
    assert_eq!(enforce_limit(store, 1300).await, 0);
    assert_eq!(enforce_limit(store, 100).await, 1200);
}

pub async fn dead_letter_with_an_unknown_reason_is_listed(store: &TestStore) {
    insert_dead_letters(store, vec![dead_letter("a", b"x", 1)], 9).await;
    store
        .execute("UPDATE dead_letters SET reason = 'reason_of_another_version'")
        .await;
    let stored = list_all_dead_letters(store).await;
    assert_eq!(stored[0].reason, "reason_of_another_version");
}
