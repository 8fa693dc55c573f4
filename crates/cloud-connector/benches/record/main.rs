//! Measures recording: the throughput of each stage from the MQTT broker to the database, the
//! latency from a publish to the API, memory, and a simulated fleet. Most values are ratios to a
//! baseline, which is a simpler program that does the same work. Runs of the connector alternate
//! with runs of the baseline on the same services. Each value is the median of all runs.
//!
//! Start this benchmark with `make bench-record`. It prints a table, writes
//! target/bench/record.json, and exits with 1 if a performance goal is missed. Arguments select
//! parts: batch, search, history, pipeline, ingest, standby, embedded, latency, fleet, connect.

mod baseline;
mod batch;
mod client;
mod connect_cost;
mod embedded;
mod fleet;
mod ingest;
mod kafka_topics;
mod latency;
mod pipeline;
mod plot;
mod queue;
mod rows;
mod search_index;
mod standby;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::Result;
use support::process;
use support::report::{self, Measurement};
use support::{Services, repository_root};

const RESULT_FILE: &str = "target/bench/record.json";
/// Names of the parts of the benchmark. Arguments select parts by name.
const PART_NAMES: [&str; 10] = [
    "batch", "search", "history", "pipeline", "ingest", "standby", "embedded", "latency", "fleet",
    "connect",
];

/// Number of runs of most measurements.
const RUN_COUNT: usize = 5;
/// The organization of all clients. This organization is the default of the setting
/// `tenant.default_org_id`.
const ORG_ID: &str = "10000";
/// Topic filter that matches the online messages of all clients.
const CONTROL_TOPIC_FILTER: &str = "redhat/insights/+/control/out";

fn main() -> ExitCode {
    match run_parts() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-record: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected parts. Returns whether all performance goals are met.
fn run_parts() -> Result<bool> {
    let parts = support::select_parts(support::args_without_flags(), &PART_NAMES)?;
    let services = Services::from_env_file()?;
    // `reqwest` needs a rustls provider even for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The connector uses the same kind of runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut all_measurements = Vec::new();
    for part in parts {
        let measurements: Vec<Measurement> = runtime.block_on(async {
            match part.as_str() {
                "batch" => batch::measure_new_and_known_clients(&services).await,
                "search" => search_index::measure_search_index(&services).await,
                "history" => search_index::measure_history_and_events(&services).await,
                "pipeline" => pipeline::measure_record_role(&services).await,
                "ingest" => ingest::measure_ingest_role(&services).await,
                "standby" => standby::measure_takeover(&services).await,
                "embedded" => embedded::measure_publish_rate(&services).await,
                "latency" => latency::measure_latency(&services).await,
                "fleet" => fleet::measure_fleet().await,
                _ => connect_cost::measure_connect_cost().await,
            }
        })?;
        report::print_table(&measurements);
        report::write_json(&measurements, &repository_root().join(RESULT_FILE))?;
        all_measurements.extend(measurements);
    }
    Ok(all_measurements.iter().all(Measurement::meets_goal))
}
