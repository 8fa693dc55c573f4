//! How fast the REST interface answers, beside the barest server that does the same, and beside the
//! database itself. Everything is measured in one run on the same services, rounds interleaved;
//! medians count.
//!
//! `make bench-api` runs it. Prints a table, writes target/bench/api.json, and exits with 1 when a bar
//! is missed. Arguments name parts to run alone: status, message, pages.

mod baseline;
mod load;
mod pages;
mod rows;
mod throughput;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use support::report::{self, Figure};
use support::{Services, process, root};

const RESULT: &str = "target/bench/api.json";
const PARTS: [&str; 3] = ["status", "message", "pages"];
/// The argument that makes this program the bare server.
const BARE: &str = "serve-bare";

/// How often everything is measured.
const ROUNDS: usize = 5;
/// The organisation that everybody belongs to.
const ORG: &str = "10000";
const KEY: &str = "the-key-of-the-benchmark";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    // Cargo adds its own flags.
    let arguments = std::env::args().skip(1);
    let mut parts: Vec<String> = arguments.filter(|one| !one.starts_with("--")).collect();
    // The crate that asks over HTTP wants its cryptography named, though none is used here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The same runtime as the program's.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let services = Services::read()?;
    if parts.first().is_some_and(|part| part == BARE) {
        runtime.block_on(baseline::serve(&services, &parts[1]))?;
        return Ok(true);
    }
    for part in &parts {
        let known = PARTS.contains(&part.as_str());
        ensure!(known, "there is no part {part:?}; there are {PARTS:?}");
    }
    if parts.is_empty() {
        parts = PARTS.map(str::to_owned).to_vec();
    }
    let mut all = Vec::new();
    for part in parts {
        let figures: Vec<Figure> = runtime.block_on(async {
            match part.as_str() {
                "status" => throughput::status(&services).await,
                "message" => throughput::message(&services).await,
                _ => pages::measure(&services).await,
            }
        })?;
        report::show(&figures);
        report::write(&figures, &root().join(RESULT))?;
        all.extend(figures);
    }
    Ok(all.iter().all(Figure::is_met))
}
