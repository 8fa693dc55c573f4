//! `version`: prints the version and the commit.

use std::process::ExitCode;

use anyhow::Result;

/// Version, and the commit of the source files. Outside a Git repository and in debug builds, the commit
/// is `unknown` (build.rs).
pub(super) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("CLOUD_CONNECTOR_COMMIT"),
    ")"
);

#[expect(
    clippy::unnecessary_wraps,
    reason = "all commands have the same signature"
)]
pub(super) fn run() -> Result<ExitCode> {
    println!("cloud-connector {VERSION}");
    Ok(ExitCode::SUCCESS)
}
