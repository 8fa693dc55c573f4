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
            max_dead_letters: 100,
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
    assert_eq!(
        store
            .dead_letters
            .purge_dead_letters(&reason_filter)
            .await
            .unwrap(),
        1
    );
    let empty_filter = DeadLetterFilter::default();
    assert_eq!(
        store
            .dead_letters
            .purge_dead_letters(&empty_filter)
            .await
            .unwrap(),
        2
    );
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

pub async fn oldest_dead_letters_above_the_total_limit_are_deleted(store: &TestStore) {
    let limits = DeadLetterLimits {
        max_dead_letters_per_client: 9,
        max_dead_letters: 2,
    };
    for (name, second) in [("a", 1), ("b", 2), ("c", 3)] {
        let batch = PresenceBatch {
            dead_letters: vec![dead_letter(name, b"x", second)],
            dead_letter_limits: limits,
            ..PresenceBatch::default()
        };
        store
            .presence
            .record_batch(&batch, &[], timestamp_at(second))
            .await
            .unwrap();
    }
    let stored = list_all_dead_letters(store).await;
    let clients: Vec<_> = stored.into_iter().filter_map(|d| d.client).collect();
    assert_eq!(clients, [client("c"), client("b")]);
}

pub async fn dead_letter_with_an_unknown_reason_is_listed(store: &TestStore) {
    insert_dead_letters(store, vec![dead_letter("a", b"x", 1)], 9).await;
    store
        .execute("UPDATE dead_letters SET reason = 'reason_of_another_version'")
        .await;
    let stored = list_all_dead_letters(store).await;
    assert_eq!(stored[0].reason, "reason_of_another_version");
}
