//! `simulate`: runs one client or a fleet of clients in one process.
//!
//! The clients connect, publish online messages, respond to pings and messages, obey reconnect and
//! disconnect commands, and disconnect cleanly at the end. `--misbehave` and `--storm` add faults.

mod args;
mod client;
mod counters;
mod dialect;
mod fd_limit;
mod fleet;
mod histogram;
mod misbehavior;
mod progress;
mod rate;
mod session;
mod summary;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

pub use args::{OutputFormat, SimulateArgs};
use client::Client;
use fleet::Fleet;
use progress::Progress;
use summary::Summary;

/// Assumed number of disconnects that the broker handles per second. The shutdown timeout is
/// calculated from this rate.
const ASSUMED_DISCONNECTS_PER_SECOND: u32 = 100;
const MIN_SHUTDOWN_TIMEOUT_SECONDS: u32 = 5;

/// Runs the simulated clients until the end of the scenario or until a signal.
///
/// # Errors
/// When an argument is invalid, or no client could connect.
pub fn run(args: &SimulateArgs) -> Result<ExitCode> {
    fleet::check_args(args)?;
    fd_limit::raise_fd_limit(args.client_count)?;
    let prints_events =
        args.client_count == 1 && args.output_format == OutputFormat::Text && !args.quiet;
    let fleet = Arc::new(Fleet::new(args, prints_events));
    let clients = fleet::create_clients(args, &fleet)?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run_fleet(args, fleet, clients))
}

async fn run_fleet(
    args: &SimulateArgs,
    fleet: Arc<Fleet>,
    clients: Vec<Arc<Client>>,
) -> Result<ExitCode> {
    let mut signals = Signals::new()?;
    let started_at = Instant::now();
    let shows_progress = !args.quiet && !fleet.prints_events;
    let progress = shows_progress.then(|| Progress::start(fleet.clone(), args.client_count));
    tokio::select! {
        () = signals.wait_for_any() => {}
        () = sleep_or_wait_forever(args.run_duration) => {}
        () = run_scenario(args, &fleet, &clients, progress.as_ref()) => {}
    }
    let timeout_seconds =
        MIN_SHUTDOWN_TIMEOUT_SECONDS + args.client_count / ASSUMED_DISCONNECTS_PER_SECOND;
    let shutdown_timeout = Duration::from_secs(timeout_seconds.into());
    let all_disconnected = tokio::select! {
        all_disconnected = fleet.tasks.stop(shutdown_timeout) => all_disconnected,
        // `exit` ends the process at once. `return` would wait for tasks that may never end.
        () = signals.wait_for_any() => std::process::exit(130),
    };
    if let Some(progress) = progress {
        progress.finish();
    }
    if !all_disconnected {
        eprintln!(
            "some clients did not disconnect within {shutdown_timeout:?}; the broker publishes \
             their last wills"
        );
    }
    let summary = Summary::new(&fleet.counters, args.client_count, started_at.elapsed());
    let summary_text = match args.output_format {
        OutputFormat::Text => summary.to_text(),
        OutputFormat::Json => summary.to_json()? + "\n",
    };
    // A write error is ignored: the process that reads standard output may have exited.
    let _ = std::io::stdout().write_all(summary_text.as_bytes());
    if fleet.counters.snapshot().successful_connects == 0 {
        let error = fleet.counters.last_error();
        bail!(
            "no client could connect to {}: {}; start a broker there (`cloud-connector run`), or \
             pass another address with --mqtt",
            args.broker_address,
            error
                .as_deref()
                .unwrap_or("stopped before the broker responded")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts all clients. Then runs the storm and publishes the updates. Never returns.
async fn run_scenario(
    args: &SimulateArgs,
    fleet: &Fleet,
    clients: &[Arc<Client>],
    progress: Option<&Progress>,
) {
    rate::start_clients(fleet, clients, args.connect_rate).await;
    let show_message = |text: &str| {
        if let Some(progress) = progress {
            progress.print_message(text);
        }
    };
    let storm = async {
        if let Some(duration) = args.storm_duration {
            show_message("reconnect storm started");
            fleet.set_storm_active(true);
            tokio::time::sleep(duration).await;
            fleet.set_storm_active(false);
            show_message("reconnect storm ended");
        }
    };
    let publish_updates = async {
        if args.update_rate > 0 {
            rate::publish_updates(fleet, clients, args.update_rate).await;
        }
    };
    tokio::join!(storm, publish_updates);
    std::future::pending::<()>().await;
}

/// Sleeps for the duration. Never returns if the duration is `None`.
async fn sleep_or_wait_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// Receives SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn wait_for_any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
