//! Replays dead letters that an operator selected. The recorder processes a replayed message like
//! any other message, in order with the client's new messages.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Recorder, RecorderInput};
use domain::ClientId;
use protocol::{Direction, InboundMessage, OriginalPayload, TopicScheme};
use service::TaskGroup;
use store::{DeadLetterFilter, DeadLetterRepository, StoreError, StoredDeadLetter};

/// Interval between two queries for requested replays. The interval is short, because an operator
/// waits for the replay.
const REPLAY_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_REPLAYS_PER_POLL: u32 = 100;

/// Polls for requested replays until `tasks` is cancelled.
///
/// After each replay, `end_if_not_connected` is called for the client. A replayed online message
/// must not mark a client as connected if the client has no connection to the embedded broker.
pub async fn replay_dead_letters<E, F>(
    dead_letters: Arc<dyn DeadLetterRepository>,
    recorder: Recorder,
    topic_scheme: TopicScheme,
    end_if_not_connected: E,
    tasks: TaskGroup,
) where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    loop {
        tokio::select! {
            () = tokio::time::sleep(REPLAY_POLL_INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
        let replay = replay_requested_dead_letters(
            &*dead_letters,
            &recorder,
            &topic_scheme,
            &end_if_not_connected,
        );
        let result = tokio::select! {
            result = replay => result,
            () = tasks.cancelled() => return,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "dead letter replay failed; retrying");
        }
    }
}

async fn replay_requested_dead_letters<E, F>(
    dead_letters: &dyn DeadLetterRepository,
    recorder: &Recorder,
    topic_scheme: &TopicScheme,
    end_if_not_connected: &E,
) -> Result<(), StoreError>
where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    let filter = DeadLetterFilter {
        replay_requested: true,
        ..DeadLetterFilter::default()
    };
    for listed_dead_letter in dead_letters
        .list_dead_letters(&filter, MAX_REPLAYS_PER_POLL)
        .await?
    {
        // The list contains no payloads, so each dead letter is loaded with its payload.
        let Some(dead_letter) = dead_letters.find_dead_letter(listed_dead_letter.id).await? else {
            continue;
        };
        let receipt = recorder.submit(to_recorder_input(topic_scheme, &dead_letter));
        // The receipt fails only at shutdown. The replay request then remains in the database until
        // the next start.
        if receipt.wait_until_durable().await.is_ok() {
            if let Some(end_connection) = dead_letter.client.as_ref().and_then(end_if_not_connected)
            {
                end_connection.await;
            }
            let is_deleted = dead_letters
                .finish_replay(dead_letter.id, dead_letter.occurrences)
                .await?;
            tracing::info!(
                id = dead_letter.id,
                processed = is_deleted,
                "dead letter replayed"
            );
        }
    }
    Ok(())
}

fn to_recorder_input(topic_scheme: &TopicScheme, dead_letter: &StoredDeadLetter) -> RecorderInput {
    let message = InboundMessage {
        topic: dead_letter.topic.clone(),
        payload: dead_letter.payload.clone(),
        retained: false,
        is_operator_replay: true,
        is_last_will: None,
        is_takeover: false,
        received_at: dead_letter.last_received,
        ingest_stamp: None,
        truncated_from: (!dead_letter.is_complete()).then(|| OriginalPayload {
            size_bytes: dead_letter.payload_size,
            sha256: dead_letter.sha256.clone(),
        }),
    };
    let topic = topic_scheme.parse(&dead_letter.topic);
    match topic.filter(|topic| topic.channel.direction() == Direction::FromClient) {
        Some(topic) => RecorderInput::non_kafka_message(topic, message),
        None => RecorderInput::UnknownTopic { message },
    }
}
