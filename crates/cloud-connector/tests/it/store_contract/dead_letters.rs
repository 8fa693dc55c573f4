//! Contract tests of the store methods for dead letters: insert, limits, filters, replay and purge.

use std::sync::Arc;

use bytes::Bytes;
use domain::{ClientId, RejectReason};
use protocol::{InboundMessage, Rejection};
use store::{
    DeadLetter, DeadLetterFilter, DeadLetterLimits, PresenceBatch, Store, StoredDeadLetter,
};

use super::{client, timestamp_at};

fn dead_letter(name: &str, payload: &'static [u8], second: i64) -> DeadLetter {
    let message = InboundMessage {
        topic: format!("redhat/insights/{name}/control/out"),
        payload: Bytes::from_static(payload),
        retained: false,
        is_operator_replay: false,
        received_at: timestamp_at(second),
        truncated_from: None,
    };
    let rejection = Rejection::new(RejectReason::InvalidJson, "line 1");
    DeadLetter::new(ClientId::new(name).ok(), &message, &rejection)
}

async fn insert_dead_letters(
    store: &Arc<dyn Store>,
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
        .record_batch(&batch, &[], timestamp_at(1))
        .await
        .unwrap();
}

async fn list_dead_letters(
    store: &Arc<dyn Store>,
    filter: DeadLetterFilter,
) -> Vec<StoredDeadLetter> {
    store.list_dead_letters(&filter, 100).await.unwrap()
}

async fn list_all_dead_letters(store: &Arc<dyn Store>) -> Vec<StoredDeadLetter> {
    list_dead_letters(store, DeadLetterFilter::default()).await
}

pub async fn equal_dead_letters_of_a_client_share_one_row(store: Arc<dyn Store>) {
    let first_batch = vec![dead_letter("a", b"x", 1), dead_letter("b", b"x", 1)];
    insert_dead_letters(&store, first_batch, 9).await;
    let second_batch = vec![dead_letter("a", b"x", 5), dead_letter("a", b"y", 5)];
    insert_dead_letters(&store, second_batch, 9).await;
    let stored = list_all_dead_letters(&store).await;
    assert_eq!(stored.len(), 3);
    let repeated = stored.iter().find(|d| d.occurrences == 2).unwrap();
    assert_eq!(repeated.client, Some(client("a")));
    assert_eq!(
        (repeated.first_received, repeated.last_received),
        (timestamp_at(1), timestamp_at(5))
    );
    let with_payload = store.find_dead_letter(repeated.id).await.unwrap().unwrap();
    assert_eq!(&with_payload.payload[..], b"x");
    assert!(with_payload.is_complete());
}

pub async fn oldest_dead_letters_above_the_client_limit_are_deleted(store: Arc<dyn Store>) {
    let payloads: [&'static [u8]; 5] = [b"1", b"2", b"3", b"4", b"5"];
    let dead_letters = payloads.into_iter().zip(0..);
    let dead_letters = dead_letters.map(|(payload, second)| dead_letter("a", payload, second));
    insert_dead_letters(&store, dead_letters.collect(), 2).await;
    let others = vec![dead_letter("", b"x", 9), dead_letter("b", b"x", 0)];
    insert_dead_letters(&store, others, 2).await;
    let client_a_filter = DeadLetterFilter {
        client: Some(client("a")),
        ..DeadLetterFilter::default()
    };
    let stored = list_dead_letters(&store, client_a_filter).await;
    let received_times: Vec<_> = stored.iter().map(|d| d.last_received).collect();
    assert_eq!(received_times.len(), 2);
    assert!(received_times.contains(&timestamp_at(4)) && received_times.contains(&timestamp_at(3)));
    assert_eq!(list_all_dead_letters(&store).await.len(), 4);
}

pub async fn dead_letters_can_be_filtered_read_and_purged(store: Arc<dyn Store>) {
    let mut truncated = dead_letter("a", b"first bytes", 1);
    truncated.payload_size = 3_000_000;
    truncated.reason = RejectReason::PayloadTooLarge;
    let binary_without_client = dead_letter("", b"\x00\xff\xfe", 2);
    insert_dead_letters(
        &store,
        vec![truncated, binary_without_client, dead_letter("b", b"z", 3)],
        9,
    )
    .await;
    let reason_filter = DeadLetterFilter {
        reason: Some(RejectReason::PayloadTooLarge),
        ..DeadLetterFilter::default()
    };
    let found = list_dead_letters(&store, reason_filter.clone()).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].reason, "payload_too_large");
    assert!(found[0].payload.is_empty(), "lists do not contain payloads");
    let truncated = store.find_dead_letter(found[0].id).await.unwrap().unwrap();
    assert!(!truncated.is_complete());
    let before_second_3 = DeadLetterFilter {
        received_before: Some(timestamp_at(3)),
        ..DeadLetterFilter::default()
    };
    let found = list_dead_letters(&store, before_second_3).await;
    assert_eq!(found.len(), 2);
    let without_client = found.iter().find(|d| d.client.is_none()).unwrap();
    let binary = store.find_dead_letter(without_client.id).await.unwrap();
    assert_eq!(&binary.unwrap().payload[..], b"\x00\xff\xfe");
    assert_eq!(store.purge_dead_letters(&reason_filter).await.unwrap(), 1);
    let empty_filter = DeadLetterFilter::default();
    assert_eq!(store.purge_dead_letters(&empty_filter).await.unwrap(), 2);
    let purged = store.find_dead_letter(without_client.id).await.unwrap();
    assert_eq!(purged, None);
}

pub async fn finish_replay_keeps_a_dead_letter_that_was_rejected_again(store: Arc<dyn Store>) {
    insert_dead_letters(
        &store,
        vec![dead_letter("a", b"x", 1), dead_letter("a", b"y", 1)],
        9,
    )
    .await;
    let stored = list_all_dead_letters(&store).await;
    for dead_letter in &stored {
        assert!(
            store
                .request_replay(dead_letter.id, timestamp_at(2))
                .await
                .unwrap()
        );
    }
    assert!(
        !store
            .request_replay(999_999, timestamp_at(2))
            .await
            .unwrap()
    );
    let replay_requested = DeadLetterFilter {
        replay_requested: true,
        ..DeadLetterFilter::default()
    };
    assert_eq!(
        list_dead_letters(&store, replay_requested.clone())
            .await
            .len(),
        2
    );
    let sha256_of_x = dead_letter("a", b"x", 3).sha256;
    let is_x = |d: &&StoredDeadLetter| d.sha256 == sha256_of_x;
    let accepted = stored.iter().find(|d| !is_x(d)).unwrap();
    let rejected = stored.iter().find(is_x).unwrap();
    assert!(store.finish_replay(accepted.id, 1).await.unwrap());
    insert_dead_letters(&store, vec![dead_letter("a", b"x", 3)], 9).await;
    assert!(!store.finish_replay(rejected.id, 1).await.unwrap());
    assert!(list_dead_letters(&store, replay_requested).await.is_empty());
    assert_eq!(list_all_dead_letters(&store).await[0].occurrences, 2);
}

#[tokio::test]
async fn dead_letter_with_an_unknown_reason_is_listed() {
    let test = super::open_sqlite().await;
    insert_dead_letters(&test.store, vec![dead_letter("a", b"x", 1)], 9).await;
    test.execute("UPDATE dead_letters SET reason = 'reason_of_another_version'")
        .await;
    let stored = list_all_dead_letters(&test.store).await;
    assert_eq!(stored[0].reason, "reason_of_another_version");
    test.store.close().await;
}
