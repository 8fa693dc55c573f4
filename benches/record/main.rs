//! How fast recording is, beside what the parts that it is made of allow. Everything is measured in
//! one run on the same services, rounds interleaved; medians count.
//!
//! `make bench-record` runs it. Prints a table, writes target/bench/record.json, and exits with 1
//! when a bar is missed. Arguments name parts to run alone: batch, known, pipeline, ingest,
//! embedded, latency, fleet.

mod baseline;
mod batch;
mod client;
mod embedded;
mod fleet;
mod ingest;
mod latency;
mod pipeline;
mod plot;
mod queue;
mod rows;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use support::process;
use support::report::{self, Figure};
use support::{Services, root};

const RESULT: &str = "target/bench/record.json";
const PARTS: [&str; 7] = [
    "batch", "known", "pipeline", "ingest", "embedded", "latency", "fleet",
];

/// How often everything is measured.
pub const ROUNDS: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-record: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    // Cargo adds its own flags.
    let mut parts: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    for part in &parts {
        let known = PARTS.contains(&part.as_str());
        ensure!(known, "there is no part {part:?}; there are {PARTS:?}");
    }
    if parts.is_empty() {
        parts = PARTS.map(str::to_owned).to_vec();
    }
    let services = Services::read()?;
    // The crate that asks over HTTP wants its cryptography named, though none is used here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The same runtime as the program's.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut all = Vec::new();
    for part in parts {
        let figures: Vec<Figure> = runtime.block_on(async {
            match part.as_str() {
                "batch" => batch::measure(&services).await,
                "known" => batch::measure_known(&services).await,
                "pipeline" => pipeline::measure(&services).await,
                "ingest" => ingest::measure(&services).await,
                "embedded" => embedded::measure(&services).await,
                "latency" => latency::measure(&services).await,
                _ => fleet::measure().await,
            }
        })?;
        report::show(&figures);
        report::write(&figures, &root().join(RESULT))?;
        all.extend(figures);
    }
    Ok(all.iter().all(Figure::is_met))
}
