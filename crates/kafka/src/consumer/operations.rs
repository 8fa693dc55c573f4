//! Operations that must finish before the consumer reads the next message: assign or give up
//! partitions, seek, and replace the client. They block other threads, not the caller.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::Offset;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::callbacks::RebalanceEvent;
use super::client::{Client, create_client};
use super::commit_order::CommitOrder;
use super::offsets::{self, Offsets, StartOffsets};
use super::state::ConsumerState;
use crate::KafkaSettings;
use crate::topic_identity::TopicId;
use service::LogThrottle;

const SEEK_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a failed request for start offsets is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum time for which the requests for start offsets are repeated. A member that does not
/// complete its rebalance blocks the next rebalance of the group. The assignment may contain a
/// partition that no longer exists, and then only the next rebalance corrects it.
const MAX_ASSIGNMENT_TIME: Duration = Duration::from_secs(30);
/// Delay before the client is replaced if the previous replacement was recent, or before a failed
/// creation is repeated.
const REPLACEMENT_DELAY: Duration = Duration::from_secs(5);

pub(super) const RECREATED_TOPIC: &str = "the topic was deleted and created again";

pub(super) type Operation = BoxFuture<'static, OperationOutcome>;

/// Result of an operation.
pub(super) enum OperationOutcome {
    /// The partitions are assigned to the client, or the assignment failed.
    Assigned(Result<StartOffsets, String>),
    /// The client has given its partitions up.
    Unassigned,
    /// The client has changed its positions, or cannot change a position.
    Sought(Result<(), String>),
    /// A new client was created.
    ClientCreated(Arc<Client>, mpsc::UnboundedReceiver<RebalanceEvent>),
}

/// Determines the start offsets of the partitions and assigns the partitions to the client. Repeats
/// failed requests for [`MAX_ASSIGNMENT_TIME`].
///
/// Fails if the topic does not have the expected id. The client must then be replaced, because it
/// has cached offsets of the previous topic.
pub(super) fn assign(
    client: Arc<Client>,
    state: Arc<ConsumerState>,
    partitions: Vec<i32>,
    expected_id: Option<TopicId>,
) -> Operation {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    let partitions: Arc<[i32]> = partitions.into();
    let assignment = async move {
        let deadline = Instant::now() + MAX_ASSIGNMENT_TIME;
        loop {
            let (client, task_state) = (client.clone(), state.clone());
            let (partitions, expected_id) = (partitions.clone(), expected_id.clone());
            let attempt = run_blocking(move || {
                try_assign(
                    &client,
                    &task_state.topic,
                    &partitions,
                    expected_id.as_ref(),
                )
            });
            let error = match attempt.await {
                Ok(result) => return result,
                Err(error) => format!("cannot read start offsets: {error}"),
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            if LOG_THROTTLE.should_log() {
                let topic = &state.topic;
                tracing::warn!(topic, error, "failed to assign partitions; retrying");
            }
            state.set_last_error(error);
            sleep(RETRY_DELAY).await;
        }
    };
    assignment.map(OperationOutcome::Assigned).boxed()
}

/// Assigns the partitions. The outer error can be temporary.
fn try_assign(
    client: &Client,
    topic: &str,
    partitions: &[i32],
    expected_id: Option<&TopicId>,
) -> Result<Result<StartOffsets, String>, String> {
    let start = if partitions.is_empty() {
        StartOffsets {
            topic_id: None,
            offsets: Offsets::new(),
        }
    } else {
        match offsets::fetch_start_offsets(client, topic, partitions, expected_id)? {
            Some(start) => start,
            None => return Ok(Err(RECREATED_TOPIC.to_owned())),
        }
    };
    let assigned = offsets::assign(client, topic, &start.offsets);
    Ok(assigned.map(|()| start))
}

/// Commits the offsets and gives the partitions up.
pub(super) fn unassign(
    client: Arc<Client>,
    state: Arc<ConsumerState>,
    topic_id: Option<TopicId>,
    offsets: Offsets,
    commit_order: CommitOrder,
) -> Operation {
    run_blocking(move || {
        commit_before_unassign(
            &client,
            &state.topic,
            topic_id.as_ref(),
            &offsets,
            &commit_order,
        );
        if let Err(error) = client.unassign() {
            tracing::warn!(%error, "failed to give up partitions");
        }
        OperationOutcome::Unassigned
    })
}

/// Commits offsets before the client gives its partitions up. If this fails, the next owner of the
/// partitions reads some messages again. Blocks the thread.
pub(super) fn commit_before_unassign(
    client: &Client,
    topic: &str,
    topic_id: Option<&TopicId>,
    offsets: &Offsets,
    commit_order: &CommitOrder,
) {
    // A check that still runs must not commit its older offsets after this commit, or after the
    // next owner has committed.
    commit_order.end();
    if offsets.is_empty() || client.assignment_lost() {
        return;
    }
    match offsets::commit_if_unchanged(client, topic, topic_id, offsets) {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            topic,
            "the topic was deleted and created again; offsets of the old topic are discarded"
        ),
        Err(error) => tracing::warn!(topic, error, "failed to commit Kafka offsets"),
    }
}

/// Changes the positions in the partitions.
pub(super) fn seek(
    client: Arc<Client>,
    state: Arc<ConsumerState>,
    positions: Offsets,
) -> Operation {
    run_blocking(move || {
        let seek = |(partition, offset): (i32, i64)| {
            let position = Offset::Offset(offset);
            client
                .seek(&state.topic, partition, position, SEEK_TIMEOUT)
                .map_err(|error| {
                    format!("cannot read partition {partition} from offset {offset}: {error}")
                })
        };
        OperationOutcome::Sought(positions.into_iter().try_for_each(seek))
    })
}

/// Creates a new client, which joins the group.
pub(super) fn replace_client(
    kafka: KafkaSettings,
    state: Arc<ConsumerState>,
    is_repeated: bool,
) -> Operation {
    let creation = async move {
        if is_repeated {
            sleep(REPLACEMENT_DELAY).await;
        }
        loop {
            match create_client(&kafka, &state.topic, &state.group) {
                Ok((client, rebalances)) => {
                    return OperationOutcome::ClientCreated(client, rebalances);
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to create a Kafka consumer; retrying");
                    state.set_last_error(error.to_string());
                    sleep(REPLACEMENT_DELAY).await;
                }
            }
        }
    };
    creation.boxed()
}

/// Runs a function on a thread that may block.
pub(super) fn run_blocking<T: Send + 'static>(
    function: impl FnOnce() -> T + Send + 'static,
) -> BoxFuture<'static, T> {
    let task = tokio::task::spawn_blocking(function);
    async move {
        match task.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                // The panic must end this task, too, so that the supervisor detects it.
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => std::future::pending().await,
            },
        }
    }
    .boxed()
}
