//! Measures the CPU time that a connector in embedded mode needs for a connect and a disconnect, with
//! many and with few connected clients. The cost must not depend on the number of clients.

use anyhow::Result;

use super::client::MqttClient;
use super::embedded::EmbeddedConnector;
use super::fleet::{CLIENT_COUNT, start_simulator, wait_for_connection_count};
use super::rows;
use super::support::report::{Goal, Measurement, median};

/// Number of clients in the smaller fleet.
const SMALL_CLIENT_COUNT: u64 = 1000;
/// Number of connects in one run.
const CONNECTS_PER_RUN: usize = 4000;
const RUN_COUNT: usize = 5;
/// Clients of the larger fleet that are not simulated, so that the connects of the measurement stay
/// below the limit of open files.
const RESERVED_CONNECTIONS: u64 = 100;

pub async fn measure_connect_cost() -> Result<Vec<Measurement>> {
    let small = EmbeddedConnector::start().await?;
    let large = EmbeddedConnector::start().await?;
    let large_client_count = CLIENT_COUNT - RESERVED_CONNECTIONS;
    let _small_fleet = start_simulator(&small, SMALL_CLIENT_COUNT)?;
    wait_for_connection_count(&small, SMALL_CLIENT_COUNT).await?;
    let _large_fleet = start_simulator(&large, large_client_count)?;
    wait_for_connection_count(&large, large_client_count).await?;
    let (mut small_micros, mut large_micros) = (vec![], vec![]);
    for _ in 0..RUN_COUNT {
        small_micros.push(cpu_micros_per_connect(&small).await?);
        large_micros.push(cpu_micros_per_connect(&large).await?);
    }
    let (small_micros, large_micros) = (median(&small_micros), median(&large_micros));
    Ok(vec![Measurement {
        name: "CPU time per connect, 19,400 ÷ 1,000 connected clients".to_owned(),
        details: format!("{large_micros:.0} µs ÷ {small_micros:.0} µs"),
        value: large_micros / small_micros,
        unit: "",
        goal: Goal::AtMost(1.3),
    }])
}

/// Connects and disconnects new clients, one after the other. Returns the CPU time of the connector per
/// client in microseconds.
async fn cpu_micros_per_connect(connector: &EmbeddedConnector) -> Result<f64> {
    let client_ids = rows::random_client_ids(CONNECTS_PER_RUN);
    let cpu_before = connector.process.cpu_seconds()?;
    for client_id in client_ids {
        drop(MqttClient::connect(&connector.process.mqtt_address, &client_id).await?);
    }
    let cpu_seconds = connector.process.cpu_seconds()? - cpu_before;
    Ok(cpu_seconds * 1_000_000.0 / CONNECTS_PER_RUN as f64)
}
