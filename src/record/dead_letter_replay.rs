//! Dead letters that an operator wants processed again: taken through the recorder like anything
//! else, so that they stand in one order with what the client says meanwhile.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Recorder, RecorderInput};
use crate::domain::ClientId;
use crate::protocol::{Direction, InboundMessage, TopicScheme, Truncated};
use crate::shutdown::TaskGroup;
use crate::store::{DeadLetterFilter, Store, StoreError, StoredDeadLetter};

/// How often there is one to look for. An operator waits for it.
const LOOK: Duration = Duration::from_secs(1);
const AT_ONCE: u32 = 100;

/// Looks for dead letters to process again, until `stopper` asks.
///
/// `end_if_not_connected` is asked about each client afterwards: one that the embedded broker knows to be gone
/// is not brought back by what it said long ago.
pub async fn replay_dead_letters<E, F>(
    store: Arc<dyn Store>,
    recorder: Recorder,
    topics: TopicScheme,
    end_if_not_connected: E,
    stopper: TaskGroup,
) where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stopper.asked() => return,
        }
        let replayed = tokio::select! {
            replayed = replay_asked(&*store, &recorder, &topics, &end_if_not_connected) => replayed,
            () = stopper.asked() => return,
        };
        if let Err(error) = replayed {
            tracing::debug!(%error, "cannot look for dead letters to process again");
        }
    }
}

async fn replay_asked<E, F>(
    store: &dyn Store,
    recorder: &Recorder,
    topics: &TopicScheme,
    end_if_not_connected: &E,
) -> Result<(), StoreError>
where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    let asked = DeadLetterFilter {
        replay_asked: true,
        ..DeadLetterFilter::default()
    };
    for listed in store.list_dead_letters(&asked, AT_ONCE).await? {
        let Some(kept) = store.dead_letter(listed.id).await? else {
            continue;
        };
        let receipt = recorder.submit(event(topics, &kept));
        // Dropped only at shutdown: it stays asked for.
        if receipt.durable().await.is_ok() {
            if let Some(ending) = kept.letter.client.as_ref().and_then(end_if_not_connected) {
                ending.await;
            }
            let forgotten = store.finish_replay(kept.id, kept.times).await?;
            tracing::info!(id = kept.id, processed = forgotten, "dead letter replayed");
        }
    }
    Ok(())
}

fn event(topics: &TopicScheme, kept: &StoredDeadLetter) -> RecorderInput {
    let letter = &kept.letter;
    let message = InboundMessage {
        topic: letter.topic.clone(),
        payload: letter.payload.clone(),
        replayed: false,
        again: true,
        received: letter.received,
        cut: (!letter.is_whole()).then(|| Truncated {
            size: letter.size,
            sha256: letter.sha256.clone(),
        }),
    };
    let topic = topics.parse(&letter.topic);
    match topic.filter(|topic| topic.route.direction() == Direction::FromClient) {
        Some(topic) => RecorderInput::message(topic, message),
        None => RecorderInput::UnknownTopic { message },
    }
}
