//! A fleet of 10,000 on the embedded set-up: how soon all are recorded, and how soon all are gone when
//! they die at once.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::process::Command;

use super::embedded::Embedded;
use super::process::eventually;
use super::support::report::{Bar, Figure};

const CLIENTS: u64 = 10_000;
const SECONDS_MOST: f64 = 60.0;
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub async fn measure() -> Result<Vec<Figure>> {
    let connector = Embedded::start().await?;
    let before = connector.process.held_memory()?;
    let started = Instant::now();
    let mut simulator = Command::new(env!("CARGO_BIN_EXE_cloud-connector"))
        .args(["simulate", "--quiet", "--dialect", "mixed"])
        .args(["--clients", &CLIENTS.to_string()])
        .args(["--mqtt", &connector.process.mqtt])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("simulate")?;
    wait_for(&connector, CLIENTS).await?;
    let there = started.elapsed().as_secs_f64();
    let held = connector.process.held_memory()?;
    let killed = Instant::now();
    simulator.kill().await?;
    wait_for(&connector, 0).await?;
    let gone = killed.elapsed().as_secs_f64();
    let seconds = |name: &str, value| Figure {
        name: name.to_owned(),
        measured: "both dialects, 500 connections a second".to_owned(),
        value,
        unit: "s",
        bar: Bar::AtMost(SECONDS_MOST),
    };
    Ok(vec![
        seconds("10,000 clients, all recorded", there),
        seconds("10,000 clients, all gone", gone),
        Figure {
            name: "10,000 clients, memory each".to_owned(),
            measured: format!("{held:.0} MiB held, {before:.0} before"),
            value: (held - before) * 1024.0 / CLIENTS as f64,
            unit: "KiB",
            bar: Bar::None,
        },
    ])
}

async fn wait_for(connector: &Embedded, count: u64) -> Result<()> {
    let http = reqwest::Client::new();
    eventually("the fleet", LOOK_EVERY, || async {
        Ok((connector.count(&http).await? == count).then_some(()))
    })
    .await
}
