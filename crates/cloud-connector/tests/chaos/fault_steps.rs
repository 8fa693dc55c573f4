//! The steps of a fault: the preparation, the fault itself, and the recovery.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::deployment::ChaosDeployment;
use crate::gate::FleetSendLimit;
use crate::recovery::measure_recovery;
use crate::run::{CONVERGENCE_TIMEOUT, PROGRESS_TIMEOUT};
use crate::schedule::ScheduledFault;
use crate::topics;

/// The consumers commit offsets once per second.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1500);

/// Injects a fault, then waits until the connector records messages again. Returns the time from the
/// end of the fault until then. Drops `permit` at the end of the fault.
pub async fn inject_and_recover(
    deployment: &ChaosDeployment,
    scheduled: ScheduledFault,
    fault_log: &Mutex<Vec<String>>,
    permit: OwnedSemaphorePermit,
) -> Result<Duration, String> {
    let ScheduledFault {
        acknowledged_messages_before,
        fault,
        ..
    } = scheduled;
    let start = Timestamp::now();
    let result = deployment.inject(fault).await;
    drop(permit);
    let description = format!("{start:.3} to {:.3} {fault:?}", Timestamp::now());
    let recovery = match result {
        Ok(fault_end) => measure_recovery(deployment, fault_end).await,
        Err(error) => Err(error),
    };
    let recovered = match &recovery {
        Ok(recovery) => format!("recovered after {:.1} s", recovery.as_secs_f64()),
        Err(_) => "not recovered".to_owned(),
    };
    let line = format!("{description}, after {acknowledged_messages_before} messages, {recovered}");
    fault_log.lock().push(line);
    recovery.map_err(|error| format!("{error} ({description})"))
}

/// Waits until the clients send no messages and all messages are recorded. Then deletes the Kafka
/// topics. No acknowledged message is lost, because the topics contain only recorded messages.
pub async fn delete_drained_topics(
    deployment: &ChaosDeployment,
    gate: &FleetSendLimit,
) -> Result<(), String> {
    let idle = tokio::time::timeout(PROGRESS_TIMEOUT, gate.wait_until_idle()).await;
    idle.map_err(|_| "timed out waiting for the clients to pause".to_owned())?;
    let cluster = deployment.cluster();
    let cluster = cluster.expect("only the distributed mode has topics");
    // Messages may still be in the broker, so an empty queue is not sufficient. The broker delivers
    // messages in order: when a new message is recorded, all earlier messages are in Kafka. The
    // expected state cannot be used, because a client whose connection was closed does not notice
    // this while it waits.
    measure_recovery(deployment, Instant::now()).await?;
    let deadline = Instant::now() + CONVERGENCE_TIMEOUT;
    let mut empty_reads = 0;
    while empty_reads < 2 {
        let lag = topics::read_lag(cluster).await;
        empty_reads = if lag == Ok(0) { empty_reads + 1 } else { 0 };
        if Instant::now() > deadline {
            return Err(format!(
                "the queue is not drained {CONVERGENCE_TIMEOUT:?} after the clients paused: lag \
                 {lag:?}"
            ));
        }
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
    topics::delete_topics(cluster).await
}
