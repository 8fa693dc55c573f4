//! Dead letters.

use std::sync::Arc;

use bytes::Bytes;
use cloud_connector::domain::ClientId;
use cloud_connector::protocol::{InboundMessage, Rejection};
use cloud_connector::store::{
    DeadLetter, DeadLetterFilter, DeadLetterLimits, PresenceBatch, Store, StoredDeadLetter,
};

use super::{at, client};

fn letter(name: &str, payload: &'static [u8], second: i64) -> DeadLetter {
    let message = InboundMessage {
        topic: format!("redhat/insights/{name}/control/out"),
        payload: Bytes::from_static(payload),
        replayed: false,
        again: false,
        received: at(second),
        cut: None,
    };
    let why = Rejection::new("not_json", "line 1");
    DeadLetter::new(ClientId::new(name).ok(), &message, &why)
}

async fn keep(store: &Arc<dyn Store>, letters: Vec<DeadLetter>, most: u32) {
    let batch = PresenceBatch {
        dead_letters: letters,
        letters: DeadLetterLimits {
            max_per_client: most,
            max_total: 100,
        },
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(1)).await.unwrap();
}

async fn letters(store: &Arc<dyn Store>, filter: DeadLetterFilter) -> Vec<StoredDeadLetter> {
    store.list_dead_letters(&filter, 100).await.unwrap()
}

pub async fn dead_letters_are_kept_once_per_client_and_content(store: Arc<dyn Store>) {
    keep(&store, vec![letter("a", b"x", 1), letter("b", b"x", 1)], 9).await;
    keep(&store, vec![letter("a", b"x", 5), letter("a", b"y", 5)], 9).await;
    let kept = letters(&store, DeadLetterFilter::default()).await;
    assert_eq!(kept.len(), 3);
    let again = kept.iter().find(|kept| kept.times == 2).unwrap();
    assert_eq!(again.letter.client, Some(client("a")));
    assert_eq!(
        (again.first_received, again.letter.received),
        (at(1), at(5))
    );
    let whole = store.dead_letter(again.id).await.unwrap().unwrap();
    assert_eq!(&whole.letter.payload[..], b"x");
    assert!(whole.letter.is_whole());
}

pub async fn dead_letters_are_capped_per_client(store: Arc<dyn Store>) {
    let payloads: [&'static [u8]; 5] = [b"1", b"2", b"3", b"4", b"5"];
    let many = payloads.into_iter().zip(0..);
    let many = many.map(|(payload, second)| letter("a", payload, second));
    keep(&store, many.collect(), 2).await;
    keep(&store, vec![letter("", b"x", 9), letter("b", b"x", 0)], 2).await;
    let of_a = DeadLetterFilter {
        client: Some(client("a")),
        ..DeadLetterFilter::default()
    };
    let kept = letters(&store, of_a).await;
    let times: Vec<_> = kept.iter().map(|kept| kept.letter.received).collect();
    assert_eq!(times.len(), 2);
    assert!(times.contains(&at(4)) && times.contains(&at(3)));
    assert_eq!(letters(&store, DeadLetterFilter::default()).await.len(), 4);
}

pub async fn dead_letters_are_found_shown_and_purged(store: Arc<dyn Store>) {
    let mut cut = letter("a", b"beginning", 1);
    cut.size = 3_000_000;
    cut.reason = "too_large".into();
    // Bytes that are no text, a topic of any length, nobody's.
    let odd = letter("", b"\x00\xff\xfe", 2);
    keep(&store, vec![cut, odd, letter("b", b"z", 3)], 9).await;
    let by_reason = DeadLetterFilter {
        reason: Some("too_large".into()),
        ..DeadLetterFilter::default()
    };
    let found = letters(&store, by_reason.clone()).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].letter.payload.is_empty(), "a list has no payloads");
    let shown = store.dead_letter(found[0].id).await.unwrap().unwrap();
    assert!(!shown.letter.is_whole());
    let before = DeadLetterFilter {
        before: Some(at(3)),
        ..DeadLetterFilter::default()
    };
    let kept = letters(&store, before).await;
    let stray = kept.iter().find(|kept| kept.letter.client.is_none());
    let stray = store.dead_letter(stray.unwrap().id).await.unwrap().unwrap();
    assert_eq!(&stray.letter.payload[..], b"\x00\xff\xfe");
    assert_eq!(store.purge_dead_letters(&by_reason).await.unwrap(), 1);
    let all = DeadLetterFilter::default();
    assert_eq!(store.purge_dead_letters(&all).await.unwrap(), 2);
    assert_eq!(store.dead_letter(stray.id).await.unwrap(), None);
}

pub async fn a_replay_ends_a_dead_letter_unless_it_was_refused_again(store: Arc<dyn Store>) {
    keep(&store, vec![letter("a", b"x", 1), letter("a", b"y", 1)], 9).await;
    let kept = letters(&store, DeadLetterFilter::default()).await;
    for kept in &kept {
        assert!(store.request_replay(kept.id, at(2)).await.unwrap());
    }
    assert!(!store.request_replay(999_999, at(2)).await.unwrap());
    let asked = DeadLetterFilter {
        replay_asked: true,
        ..DeadLetterFilter::default()
    };
    assert_eq!(letters(&store, asked.clone()).await.len(), 2);
    // One is processed; the other is refused again.
    assert!(store.finish_replay(kept[0].id, 1).await.unwrap());
    let again = kept[1].letter.sha256.clone();
    let payload: &'static [u8] = if letter("a", b"x", 3).sha256 == again {
        b"x"
    } else {
        b"y"
    };
    keep(&store, vec![letter("a", payload, 3)], 9).await;
    assert!(!store.finish_replay(kept[1].id, 1).await.unwrap());
    assert!(letters(&store, asked).await.is_empty());
    assert_eq!(
        letters(&store, DeadLetterFilter::default()).await[0].times,
        2
    );
}
