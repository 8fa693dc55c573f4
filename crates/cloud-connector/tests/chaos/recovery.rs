//! Measures how long the connector needs to record messages again after a fault.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sqlx::Connection as _;
use tokio::time::{sleep, timeout};

use crate::connection::Connection;
use crate::deployment::ChaosDeployment;
use crate::dialect;
use crate::plan::{ClockKind, Profile, TenantKind};
use crate::random::Random;

/// The ids of the clients that measure the recovery start with this text. The check at the end of a
/// round ignores these clients.
pub const RECOVERY_CLIENT_PREFIX: &str = "recovery-";

/// After the end of a fault, a new message must be recorded within this time. Another fault may
/// happen meanwhile.
const RECOVERY_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects a new client that sends an online message, and waits until the database contains the
/// message. Returns the time since `fault_end`.
pub async fn measure_recovery(
    deployment: &ChaosDeployment,
    fault_end: Instant,
) -> Result<Duration, String> {
    static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let profile = Profile {
        client_id: format!("{RECOVERY_CLIENT_PREFIX}{number}"),
        uses_handshake: false,
        reconnects_with_heartbeat_only: false,
        clock: ClockKind::Correct,
        tenant: TenantKind::Default,
    };
    let message_id = format!("message-{number}");
    let online = dialect::online_content(&profile, 1, Some(message_id.clone()), Timestamp::now());
    let message = dialect::online_message(&profile, online);
    let recovery = async {
        let (mut attempts, mut random) = (0, Random::new(number, &[5]));
        let address = &deployment.broker_address;
        loop {
            let mut connection =
                Connection::open(address, &profile, &mut attempts, &mut random, &mut |_| {}).await;
            if connection.publish(std::slice::from_ref(&message)).await != [true] {
                continue;
            }
            let recorded = async {
                while !is_recorded(deployment, &profile.client_id, &message_id).await {
                    sleep(POLL_INTERVAL).await;
                }
            };
            tokio::select! {
                () = recorded => return,
                // Another fault closed the connection. The broker then publishes the last will, and
                // the row is deleted.
                () = connection.wait_for_close() => {}
            }
        }
    };
    let result = timeout(
        RECOVERY_TIMEOUT.saturating_sub(fault_end.elapsed()),
        recovery,
    );
    match result.await {
        Ok(()) => Ok(fault_end.elapsed()),
        Err(_) => Err(format!(
            "a message that {} sent after the fault is not recorded {RECOVERY_TIMEOUT:?} after the \
             end of the fault",
            profile.client_id
        )),
    }
}

/// Returns whether the client's row contains the message id. Returns false if the database does not
/// respond.
async fn is_recorded(deployment: &ChaosDeployment, client_id: &str, message_id: &str) -> bool {
    let query = async {
        let sql = "SELECT count(*) FROM connections WHERE client_id = $1 AND message_id = $2";
        let url = deployment.database_url();
        let count: i64 = if deployment.cluster().is_some() {
            let mut database = sqlx::PgConnection::connect(&url).await?;
            let query = sqlx::query_scalar(sql).bind(client_id).bind(message_id);
            query.fetch_one(&mut database).await?
        } else {
            let mut database = sqlx::SqliteConnection::connect(&url).await?;
            let query = sqlx::query_scalar(sql).bind(client_id).bind(message_id);
            query.fetch_one(&mut database).await?
        };
        Ok::<bool, sqlx::Error>(count > 0)
    };
    matches!(timeout(QUERY_TIMEOUT, query).await, Ok(Ok(true)))
}
