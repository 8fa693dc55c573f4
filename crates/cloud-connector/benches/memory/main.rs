//! Measures the resident memory of the connector while clients and callers send or request large
//! amounts of data.
//!
//! Start this benchmark with `make bench-memory`. It prints a table, writes
//! target/bench/memory.json, and exits with 1 if a limit is exceeded. Arguments select parts:
//! responses, outage, unfinished, publishes, lists.

mod intake;
mod lists;
mod responses;
mod sampling;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::Result;
use support::report::{self, Measurement};
use support::repository_root;

const RESULT_FILE: &str = "target/bench/memory.json";
/// Names of the parts of the benchmark. Arguments select parts by name.
const PART_NAMES: [&str; 5] = ["responses", "outage", "unfinished", "publishes", "lists"];

fn main() -> ExitCode {
    match run_parts() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-memory: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected parts. Returns whether all limits are met.
fn run_parts() -> Result<bool> {
    let parts = support::select_parts(support::args_without_flags(), &PART_NAMES)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut all_measurements = Vec::new();
    for part in parts {
        let measurements: Vec<Measurement> = runtime.block_on(async {
            match part.as_str() {
                "responses" => responses::measure_with_database().await,
                "outage" => responses::measure_during_database_outage().await,
                "unfinished" => intake::measure_unfinished_connects().await,
                "publishes" => intake::measure_publishes_while_the_database_is_locked().await,
                _ => lists::measure().await,
            }
        })?;
        report::print_table(&measurements);
        report::write_json(&measurements, &repository_root().join(RESULT_FILE))?;
        all_measurements.extend(measurements);
    }
    Ok(all_measurements.iter().all(Measurement::meets_goal))
}
