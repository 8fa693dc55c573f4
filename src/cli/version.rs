//! `version`: prints the version.

use std::process::ExitCode;

use anyhow::Result;

#[expect(clippy::unnecessary_wraps, reason = "commands share a signature")]
pub(super) fn run() -> Result<ExitCode> {
    println!("cloud-connector {}", env!("CARGO_PKG_VERSION"));
    Ok(ExitCode::SUCCESS)
}
