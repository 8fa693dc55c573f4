//! Measures the REST API. The baseline of throughput and latency is a simple server. The baseline
//! of a list request is the same query in SQL. Runs of the connector alternate with runs of the
//! baseline on the same services. Each value is the median of all runs.
//!
//! Start this benchmark with `make bench-api`. It prints a table, writes target/bench/api.json, and
//! exits with 1 if a performance goal is missed. Arguments select parts: status, message, pages, isolation.

mod baseline;
mod isolation;
mod load;
mod pages;
mod rows;
mod throughput;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::Result;
use support::report::{self, Measurement};
use support::{Services, process, repository_root};

const RESULT_FILE: &str = "target/bench/api.json";
/// Names of the parts of the benchmark. Arguments select parts by name.
const PART_NAMES: [&str; 4] = ["status", "message", "pages", "isolation"];
/// First argument of the child process that runs the baseline server. The second argument is the
/// name of the database.
const SERVE_BASELINE_ARG: &str = "serve-baseline";

/// Number of runs of each measurement. The warm-up run is not counted.
const RUN_COUNT: usize = 5;
/// The organization of all clients.
const ORG_ID: &str = "10000";
/// Secret of the API key `bench`.
const API_KEY_SECRET: &str = "the-key-of-the-benchmark";

fn main() -> ExitCode {
    match run_parts() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected parts. Returns whether all performance goals are met.
fn run_parts() -> Result<bool> {
    let args = support::args_without_flags();
    // `reqwest` needs a rustls provider even for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The connector uses the same kind of runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let services = Services::from_env_file()?;
    if args.first().is_some_and(|arg| arg == SERVE_BASELINE_ARG) {
        runtime.block_on(baseline::serve(&services, &args[1]))?;
        return Ok(true);
    }
    let parts = support::select_parts(args, &PART_NAMES)?;
    let mut all_measurements = Vec::new();
    for part in parts {
        let measurements: Vec<Measurement> = runtime.block_on(async {
            match part.as_str() {
                "status" => throughput::measure_status_endpoint(&services).await,
                "message" => throughput::measure_message_endpoint(&services).await,
                "isolation" => isolation::measure_hidden_clients(&services).await,
                _ => pages::measure_lists(&services).await,
            }
        })?;
        report::print_table(&measurements);
        report::write_json(&measurements, &repository_root().join(RESULT_FILE))?;
        all_measurements.extend(measurements);
    }
    Ok(all_measurements.iter().all(Measurement::meets_goal))
}
