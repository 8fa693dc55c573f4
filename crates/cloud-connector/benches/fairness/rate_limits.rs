//! The packet filter of `deploy/mosquitto/rate-limits.nft`, for the port of a benchmark.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::support::repository_root;

const TABLE: &str = "cloud_connector_mqtt";
const FLEET_PORTS: &str = "443, 8883";

/// Rate limits of a port. They are removed when the value is dropped.
pub struct RateLimits {
    table: String,
}

impl RateLimits {
    pub fn apply(port: &str) -> Result<Self> {
        let file = repository_root().join("deploy/mosquitto/rate-limits.nft");
        let rules = std::fs::read_to_string(&file)?;
        ensure!(
            rules.contains(FLEET_PORTS),
            "{} has other ports",
            file.display()
        );
        let table = format!("{TABLE}_{port}");
        let rules = rules.replace(FLEET_PORTS, port).replace(TABLE, &table);
        run_nft(&rules).context("cannot set rate limits; nftables and root are needed")?;
        Ok(Self { table })
    }
}

impl Drop for RateLimits {
    fn drop(&mut self) {
        if let Err(error) = run_nft(&format!("delete table inet {}\n", self.table)) {
            eprintln!("bench-fairness: cannot remove the rate limits: {error:#}");
        }
    }
}

fn run_nft(rules: &str) -> Result<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("nft has no standard input")?;
    stdin.write_all(rules.as_bytes())?;
    drop(stdin);
    let status = child.wait()?;
    ensure!(status.success(), "nft: {status}");
    Ok(())
}
