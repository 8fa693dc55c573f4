//! The steps of a fault: the preparation, the fault itself, and the recovery.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::check::{self, ObservedState, TrackedClient};
use crate::deployment::ChaosDeployment;
use crate::gate::FleetSendLimit;
use crate::recovery::measure_recovery;
use crate::run::{CONVERGENCE_TIMEOUT, PROGRESS_TIMEOUT};
use crate::schedule::ScheduledFault;
use crate::topics;

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
    clients: &[TrackedClient],
    gate: &FleetSendLimit,
) -> Result<(), String> {
    let idle = tokio::time::timeout(PROGRESS_TIMEOUT, gate.wait_until_idle()).await;
    idle.map_err(|_| "timed out waiting for the clients to pause".to_owned())?;
    let cluster = deployment.cluster();
    let cluster = cluster.expect("only the distributed mode has topics");
    let deadline = Instant::now() + CONVERGENCE_TIMEOUT;
    loop {
        // A message may still be in the broker. Therefore an empty queue is not sufficient.
        let observed = ObservedState::read(deployment).await;
        let mismatches = observed.map(|observed| check::find_mismatches(clients, &observed).len());
        let lag = topics::read_lag(cluster).await;
        if mismatches == Ok(0) && lag == Ok(0) {
            return topics::delete_topics(cluster).await;
        }
        if Instant::now() > deadline {
            return Err(format!(
                "the queue is not drained {CONVERGENCE_TIMEOUT:?} after the clients paused: \
                 mismatches {mismatches:?}, lag {lag:?}"
            ));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
