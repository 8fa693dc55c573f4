//! Measures a connector in embedded mode with 19,500 simulated clients: the time until all clients
//! are recorded, the time until all clients are disconnected after the simulator was killed, and
//! the memory per connection.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

use super::embedded::EmbeddedConnector;
use super::process::{CONNECTOR_PROGRAM, eventually};
use super::support::report::{Goal, Measurement};

/// Number of clients. An open-file limit of 20,000 does not allow more.
pub const CLIENT_COUNT: u64 = 19_500;
/// Number of clients that the simulator starts per second.
const CONNECT_RATE: u32 = 2000;
/// Performance goal: maximum time until all clients are recorded.
const MAX_SECONDS_UNTIL_RECORDED: f64 = 15.0;
/// Performance goal: maximum time until all clients are disconnected.
const MAX_SECONDS_UNTIL_DISCONNECTED: f64 = 8.0;
/// Performance goal: maximum memory per connection.
const MAX_KIB_PER_CONNECTION: f64 = 40.0;
/// Time between two polls for the number of connected clients.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub async fn measure_fleet() -> Result<Vec<Measurement>> {
    let connector = EmbeddedConnector::start().await?;
    let memory_before_mib = connector.process.current_memory_mib()?;
    let started_at = Instant::now();
    let mut simulator = start_simulator(&connector, CLIENT_COUNT)?;
    wait_for_connection_count(&connector, CLIENT_COUNT).await?;
    let seconds_until_recorded = started_at.elapsed().as_secs_f64();
    let memory_with_connections_mib = connector.process.current_memory_mib()?;
    let killed_at = Instant::now();
    simulator.kill().await?;
    wait_for_connection_count(&connector, 0).await?;
    let seconds_until_disconnected = killed_at.elapsed().as_secs_f64();
    let time_measurement = |name: &str, details: &str, value, max| Measurement {
        name: name.to_owned(),
        details: details.to_owned(),
        value,
        unit: "s",
        goal: Goal::AtMost(max),
    };
    Ok(vec![
        time_measurement(
            "19,500 simulated clients, all recorded",
            "since the simulator's start",
            seconds_until_recorded,
            MAX_SECONDS_UNTIL_RECORDED,
        ),
        time_measurement(
            "19,500 simulated clients, all disconnected",
            "since the simulator's kill -9",
            seconds_until_disconnected,
            MAX_SECONDS_UNTIL_DISCONNECTED,
        ),
        Measurement {
            name: "memory per connection, embedded".to_owned(),
            details: format!(
                "{memory_with_connections_mib:.0} MiB with connections, {memory_before_mib:.0} MiB before"
            ),
            value: (memory_with_connections_mib - memory_before_mib) * 1024.0 / CLIENT_COUNT as f64,
            unit: "KiB",
            goal: Goal::AtMost(MAX_KIB_PER_CONNECTION),
        },
    ])
}

/// Starts a simulator. Dropping the value kills the process.
pub fn start_simulator(connector: &EmbeddedConnector, client_count: u64) -> Result<Child> {
    Command::new(CONNECTOR_PROGRAM)
        .args(["simulate", "--quiet", "--dialect", "mixed"])
        .args(["--clients", &client_count.to_string()])
        .args(["--connect-rate", &CONNECT_RATE.to_string()])
        .args(["--mqtt", &connector.process.mqtt_address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("simulate")
}

/// Waits until the API counts `expected_count` connected clients.
pub async fn wait_for_connection_count(
    connector: &EmbeddedConnector,
    expected_count: u64,
) -> Result<()> {
    let http_client = reqwest::Client::new();
    let description = format!("{expected_count} connected clients");
    eventually(&description, POLL_INTERVAL, || async {
        let count = connector.count_connections(&http_client).await?;
        Ok((count == expected_count).then_some(()))
    })
    .await
}
