//! Dead letters that an operator wants processed again: taken through the recorder like anything
//! else, so that they stand in one order with what the client says meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::{Event, Recorder};
use crate::domain::Clock;
use crate::protocol::{Cut, Received, Topics};
use crate::shutdown::Stopper;
use crate::store::{KeptLetter, LetterFilter, Store, StoreError};

/// How often there is one to look for. An operator waits for it.
const LOOK: Duration = Duration::from_secs(1);
const AT_ONCE: u32 = 100;

/// Looks for dead letters to process again, until `stopper` asks.
pub async fn replay_letters(
    store: Arc<dyn Store>,
    recorder: Recorder,
    topics: Topics,
    clock: Arc<dyn Clock>,
    stopper: Stopper,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stopper.asked() => return,
        }
        if let Err(error) = replay_asked(&*store, &recorder, &topics, &*clock).await {
            tracing::debug!(%error, "cannot look for dead letters to process again");
        }
    }
}

async fn replay_asked(
    store: &dyn Store,
    recorder: &Recorder,
    topics: &Topics,
    clock: &dyn Clock,
) -> Result<(), StoreError> {
    let asked = LetterFilter {
        replay_asked: true,
        ..LetterFilter::default()
    };
    for listed in store.list_dead_letters(&asked, AT_ONCE).await? {
        let Some(kept) = store.dead_letter(listed.id).await? else {
            continue;
        };
        let receipt = recorder.submit(event(topics, &kept, clock));
        // Dropped only at shutdown: it stays asked for.
        if receipt.durable().await.is_ok() {
            let forgotten = store.end_replay(kept.id, kept.times).await?;
            tracing::info!(id = kept.id, processed = forgotten, "dead letter replayed");
        }
    }
    Ok(())
}

/// As if it arrived now.
fn event(topics: &Topics, kept: &KeptLetter, clock: &dyn Clock) -> Event {
    let letter = &kept.letter;
    let message = Received {
        topic: letter.topic.clone(),
        payload: letter.payload.clone(),
        replayed: false,
        received: clock.now(),
        cut: (!letter.is_whole()).then(|| Cut {
            size: letter.size,
            sha256: letter.sha256.clone(),
        }),
    };
    match topics.parse(&letter.topic) {
        Some(topic) => Event::message(topic, message),
        None => Event::Stray { message },
    }
}
