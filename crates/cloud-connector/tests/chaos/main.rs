//! The chaos test verifies that the connector loses no acknowledged message.
//!
//! A fleet of clients sends messages. Meanwhile, the test kills, pauses and restarts connector
//! processes and external services, freezes PostgreSQL, drops its packets, recreates the Kafka
//! topics, fills the disk, and shifts clocks (`faults`). After each fault, a new message must be
//! recorded soon. At the end of each round, the database, the API and the dead letters must match
//! the expected state of every client. The events that callers received during the round, over HTTP and
//! from Kafka, must be those that the clients have caused (`event_check`).
//!
//! Without arguments, the test runs one round in both deployment modes at the same time. `make
//! test` does this. `make chaos` runs more rounds. A seed determines all actions and faults, and
//! the test prints the seed. The option `--seed` repeats a run with the same actions and faults.
//! Only the exact timing differs.

mod check;
mod clients;
mod connection;
mod data_disk;
mod deployment;
mod dialect;
mod event_check;
mod event_client;
mod event_model;
mod event_rows;
mod event_stream;
mod event_topic;
mod fault_steps;
mod faults;
mod gate;
mod inject;
mod model;
mod namespaces;
mod options;
mod plan;
mod postgres_faults;
mod process;
mod random;
mod recovery;
mod report;
mod run;
mod schedule;
mod topics;
mod totals;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use faults::FaultKind;
use options::Options;
use plan::DeploymentMode;
use run::Run;

/// Minimum duration of a long run, in minutes. A long run continues until at least
/// [`MIN_KILLS_OF_LONG_RUN`] processes were killed, even if that takes longer on a slow machine.
const MIN_LONG_RUN_MINUTES: f64 = 20.0;
const MIN_KILLS_OF_LONG_RUN: u64 = 100;
/// Maximum number of open files. The limit is sufficient for one socket per client in both
/// deployment modes.
const OPEN_FILE_LIMIT: u64 = 20_000;

fn main() -> ExitCode {
    let mut options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos: {error}");
            return ExitCode::from(2);
        }
    };
    namespaces::enter(&mut options);
    let _ = rlimit::increase_nofile_limit(OPEN_FILE_LIMIT);
    let runtime = tokio::runtime::Runtime::new().expect("create a tokio runtime");
    let is_success = runtime.block_on(async {
        println!("chaos: seed {}", options.seed);
        let runs = options.modes.iter().map(|mode| {
            let (mode, options) = (*mode, options.clone());
            tokio::spawn(async move { run_mode(mode, &options).await })
        });
        let runs: Vec<_> = runs.collect();
        let all_runs = async {
            let mut is_success = true;
            for run in runs {
                is_success &= run.await.unwrap_or(false);
            }
            is_success
        };
        tokio::select! {
            is_success = all_runs => is_success,
            () = wait_for_termination_signal() => false,
        }
    });
    // Dropping the runtime drops all tasks. The tasks own the connector processes and the services.
    // Therefore the processes and services end, too.
    drop(runtime);
    if is_success {
        ExitCode::SUCCESS
    } else {
        println!("chaos: to repeat this run: {}", options.repeat_command());
        ExitCode::FAILURE
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP. Without this handler, a signal would end the test at once,
/// and the connector processes would continue to run.
async fn wait_for_termination_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let mut signals = kinds.map(|kind| signal(kind).expect("install a signal handler"));
    let received = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures::future::select_all(received).await;
}

/// Runs the test in one deployment mode and prints the result. Returns whether the test succeeded.
async fn run_mode(mode: DeploymentMode, options: &Options) -> bool {
    let start = Instant::now();
    let deadline = start
        + options
            .min_run_minutes
            .map_or(Duration::ZERO, duration_from_minutes);
    let folder = format!("chaos-{}-{}", mode.as_str(), std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).expect("create a folder for logs");
    let mut run = match Run::start(mode, options, &folder).await {
        Ok(run) => run,
        Err(error) => {
            println!("chaos {}: failed to start: {error}", mode.as_str());
            println!("  logs: {}", folder.display());
            return false;
        }
    };
    let is_long_run = options
        .min_run_minutes
        .is_some_and(|minutes| minutes >= MIN_LONG_RUN_MINUTES);
    let min_kills = if is_long_run && options.fault_kinds.contains(&FaultKind::Kill) {
        MIN_KILLS_OF_LONG_RUN
    } else {
        0
    };
    let outcome = run.run_rounds(deadline, min_kills).await;
    let summary = run.summary();
    let seconds = start.elapsed().as_secs();
    match outcome {
        Ok(()) => {
            println!("{summary}, 0 mismatches, {seconds} s");
            print!("{}", run.totals.fault_table());
            drop(run);
            let _ = std::fs::remove_dir_all(&folder);
            true
        }
        Err(failure) => {
            report::print_failure(&run, &failure);
            println!(
                "{summary}, {} mismatches, {seconds} s",
                failure.mismatches.len()
            );
            print!("{}", run.totals.fault_table());
            run.copy_service_logs();
            println!("  logs: {}", folder.display());
            false
        }
    }
}

fn duration_from_minutes(minutes: f64) -> Duration {
    Duration::from_secs_f64(minutes * 60.0)
}
