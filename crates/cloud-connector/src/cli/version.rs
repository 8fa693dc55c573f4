//! `version`: prints the version.

use std::process::ExitCode;

use anyhow::Result;

#[expect(
    clippy::unnecessary_wraps,
    reason = "all commands have the same signature"
)]
pub(super) fn run() -> Result<ExitCode> {
    println!("cloud-connector {}", env!("CARGO_PKG_VERSION"));
    Ok(ExitCode::SUCCESS)
}
