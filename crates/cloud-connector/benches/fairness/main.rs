//! Measures whether clients and callers that misbehave slow down others.
//!
//! Each attack runs twice: first against a socket that discards everything, then against the
//! connector. The attack uses the same CPU time in both runs, so the ratio of the two latencies shows
//! only what the connector does with the attack. Mosquitto runs with the packet filter that is shipped
//! with its configuration, which needs root.
//!
//! Start this benchmark with `make bench-fairness`. It prints a table, writes
//! target/bench/fairness.json, and exits with 1 if a limit is exceeded. Arguments select parts.

mod attack;
mod discard;
mod rate_limits;
mod victims;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::Result;
use support::report::{self, Goal, Measurement};
use support::repository_root;
use test_support::{Deployment, Settings};

use attack::{Attack, AttackKind};
use rate_limits::RateLimits;
use victims::{Latencies, Victims};

const RESULT_FILE: &str = "target/bench/fairness.json";
/// Names of the deployment modes. Arguments select modes and attacks by name.
const MODES: [&str; 2] = ["embedded", "distributed"];
/// Name of the measurement without attackers.
const INVENTORY_OUTAGE: &str = "inventory";
/// Maximum ratio of the latency during the attack to the latency during the discarded attack.
const MAX_RATIO: f64 = 5.0;
/// The log of the connector would hide the results.
const QUIET: Settings<'static> = &[("log.level", "error"), ("http.access_log", "false")];
/// With an inventory that is not available, reports fail. There is no attack by clients.
const MISSING_INVENTORY_TOPIC: Settings<'static> = &[
    ("log.level", "error"),
    ("http.access_log", "false"),
    ("inventory.topic", "missing"),
];

fn main() -> ExitCode {
    match run_parts() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-fairness: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected parts. Returns whether all limits are met.
fn run_parts() -> Result<bool> {
    let (modes, attacks) = select_parts(support::args_without_flags())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut all_measurements = Vec::new();
    for mode in modes {
        let is_embedded = mode == "embedded";
        for attack in &attacks {
            let kind = AttackKind::ALL
                .into_iter()
                .find(|kind| kind.key() == attack);
            let measurements = match kind {
                Some(kind) => runtime.block_on(measure_attack(is_embedded, kind))?,
                None => runtime.block_on(measure_inventory_outage(is_embedded))?,
            };
            report::print_table(&measurements);
            report::write_json(&measurements, &repository_root().join(RESULT_FILE))?;
            all_measurements.extend(measurements);
        }
    }
    Ok(all_measurements.iter().all(Measurement::meets_goal))
}

/// Returns the modes and the names of the attacks that the arguments select. Without a mode, both modes
/// are selected. Without an attack, all attacks are selected.
fn select_parts(args: Vec<String>) -> Result<(Vec<String>, Vec<String>)> {
    let (modes, attacks) = args
        .into_iter()
        .partition(|arg| MODES.contains(&arg.as_str()));
    let attack_names = AttackKind::ALL.map(AttackKind::key);
    let attack_names = [&attack_names[..], &[INVENTORY_OUTAGE]].concat();
    Ok((
        support::select_parts(modes, &MODES)?,
        support::select_parts(attacks, &attack_names)?,
    ))
}

async fn start(is_embedded: bool, settings: Settings<'_>) -> Deployment {
    if is_embedded {
        Deployment::embedded(settings).await
    } else {
        Deployment::distributed(settings).await
    }
}

async fn measure_attack(is_embedded: bool, kind: AttackKind) -> Result<Vec<Measurement>> {
    let deployment = start(is_embedded, QUIET).await;
    let victims = Victims::connect(&deployment).await?;
    let discard_address = discard::listen().await?;

    let attack = Attack::start(kind, &discard_address, None);
    let expected = victims.measure(&deployment).await?;
    attack.stop().await;

    let address = deployment.mqtt_address();
    // Mosquitto runs with the packet filter that is shipped with its configuration.
    let port = address.rsplit(':').next().unwrap_or_default();
    let _rate_limits = (!is_embedded)
        .then(|| RateLimits::apply(port))
        .transpose()?;
    let attack = Attack::start(kind, &address, Some(&deployment));
    let observed = victims.measure(&deployment).await?;
    let connect_count = attack.stop().await;
    let name = format!("{}, {}", mode_name(is_embedded), kind.name());
    let mut measurements = ratios(&name, &expected, &observed);
    measurements.push(Measurement {
        name: format!("{name}: connections of the attackers"),
        details: String::new(),
        value: connect_count as f64,
        unit: "",
        goal: Goal::None,
    });
    Ok(measurements)
}

/// Compares a connector whose inventory reports fail with a connector whose reports are delivered.
async fn measure_inventory_outage(is_embedded: bool) -> Result<Vec<Measurement>> {
    let deployment = start(is_embedded, QUIET).await;
    let victims = Victims::connect(&deployment).await?;
    let expected = victims.measure(&deployment).await?;
    drop((victims, deployment));

    let settings = if is_embedded {
        QUIET
    } else {
        MISSING_INVENTORY_TOPIC
    };
    let deployment = start(is_embedded, settings).await;
    if let Deployment::Embedded(connector) = &deployment {
        // Opening a named pipe for writing waits until a process reads the pipe.
        let file = connector.data_dir().join("inventory.ndjson");
        let _ = std::fs::remove_file(&file);
        let status = std::process::Command::new("mkfifo").arg(&file).status()?;
        anyhow::ensure!(status.success(), "mkfifo failed");
    }
    let victims = Victims::connect(&deployment).await?;
    let observed = victims.measure(&deployment).await?;
    let name = format!("{}, inventory outage", mode_name(is_embedded));
    Ok(ratios(&name, &expected, &observed))
}

fn mode_name(is_embedded: bool) -> &'static str {
    if is_embedded {
        "embedded"
    } else {
        "distributed"
    }
}

fn ratios(name: &str, expected: &Latencies, observed: &Latencies) -> Vec<Measurement> {
    let ratio = |what: &str, expected_ms: f64, observed_ms: f64| Measurement {
        name: format!("{name}: {what}, p99"),
        details: format!("{observed_ms:.1} ms ÷ {expected_ms:.1} ms"),
        value: observed_ms / expected_ms,
        unit: "",
        goal: Goal::AtMost(MAX_RATIO),
    };
    vec![
        ratio(
            "publish to visible",
            expected.visible_p99_ms,
            observed.visible_p99_ms,
        ),
        ratio(
            "message of a caller",
            expected.message_p99_ms,
            observed.message_p99_ms,
        ),
        Measurement {
            name: format!("{name}: failed messages of a caller"),
            details: format!("{} of {}", observed.failed_messages, observed.messages),
            value: observed.failed_messages as f64,
            unit: "",
            goal: Goal::AtMost(0.0),
        },
    ]
}
