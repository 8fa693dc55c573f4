//! A fleet of 10,000 simulated clients in embedded mode. Measures the time until all are recorded,
//! the time until all are disconnected after the simulator was killed, and the memory per
//! connection.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::process::Command;

use super::embedded::EmbeddedConnector;
use super::process::{PROGRAM, eventually};
use super::support::report::{Measurement, Target};

const CLIENTS: u64 = 10_000;
const MAX_SECONDS: f64 = 60.0;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub async fn measure() -> Result<Vec<Measurement>> {
    let connector = EmbeddedConnector::start().await?;
    let mib_before = connector.process.current_memory_mib()?;
    let started = Instant::now();
    let mut simulator = Command::new(PROGRAM)
        .args(["simulate", "--quiet", "--dialect", "mixed"])
        .args(["--clients", &CLIENTS.to_string()])
        .args(["--mqtt", &connector.process.mqtt_address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("simulate")?;
    wait_for_connections(&connector, CLIENTS).await?;
    let recorded_seconds = started.elapsed().as_secs_f64();
    let mib_with_connections = connector.process.current_memory_mib()?;
    let killed = Instant::now();
    simulator.kill().await?;
    wait_for_connections(&connector, 0).await?;
    let disconnected_seconds = killed.elapsed().as_secs_f64();
    let time_measurement = |name: &str, measured: &str, value| Measurement {
        name: name.to_owned(),
        measured: measured.to_owned(),
        value,
        unit: "s",
        target: Target::AtMost(MAX_SECONDS),
    };
    Ok(vec![
        time_measurement(
            "10,000 simulated clients, all recorded",
            "since the simulator's start",
            recorded_seconds,
        ),
        time_measurement(
            "10,000 simulated clients, all disconnected",
            "since the simulator's kill -9",
            disconnected_seconds,
        ),
        Measurement {
            name: "memory per connection, embedded".to_owned(),
            measured: format!(
                "{mib_with_connections:.0} MiB with connections, {mib_before:.0} MiB before"
            ),
            value: (mib_with_connections - mib_before) * 1024.0 / CLIENTS as f64,
            unit: "KiB",
            target: Target::None,
        },
    ])
}

async fn wait_for_connections(connector: &EmbeddedConnector, expected: u64) -> Result<()> {
    let http = reqwest::Client::new();
    let description = format!("{expected} connected clients");
    eventually(&description, POLL_INTERVAL, || async {
        let count = connector.count_connections(&http).await?;
        Ok((count == expected).then_some(()))
    })
    .await
}
