//! `simulate`: one client or thousands that behave as real ones do, or as badly as they are told
//! to. They come online, answer pings and messages, leave and come back when they are told, and
//! leave cleanly at the end.

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

use super::Output;
use super::block_on;
pub(super) use args::SimulateArgs;
use client::Client;
use fleet::Fleet;
use progress::Progress;
use summary::Summary;

/// All leave at once, and a broker has as much to do with that as with their coming.
const LEAVING_A_SECOND: u32 = 100;

pub(super) fn run(args: &SimulateArgs) -> Result<ExitCode> {
    fleet::check(args)?;
    fd_limit::allow(args.clients)?;
    let tells_events = args.clients == 1 && args.output == Output::Text && !args.quiet;
    let fleet = Arc::new(Fleet::new(args, tells_events));
    let clients = fleet::spawn_fleet(args, &fleet)?;
    block_on(run_all(args, fleet, clients))
}

async fn run_all(
    args: &SimulateArgs,
    fleet: Arc<Fleet>,
    clients: Vec<Arc<Client>>,
) -> Result<ExitCode> {
    let mut signals = Signals::new()?;
    let began = Instant::now();
    let shows_progress = !args.quiet && !fleet.tells_events;
    let progress = shows_progress.then(|| Progress::start(fleet.clone(), args.clients));
    tokio::select! {
        () = signals.any() => {}
        () = after(args.duration) => {}
        () = play(args, &fleet, &clients, progress.as_ref()) => {}
    }
    let bound = Duration::from_secs(u64::from(5 + args.clients / LEAVING_A_SECOND));
    let all_left = tokio::select! {
        all_left = fleet.stopper.stop(bound) => all_left,
        // Not a return: that would wait for whatever does not end.
        () = signals.any() => std::process::exit(130),
    };
    if let Some(progress) = progress {
        progress.end();
    }
    if !all_left {
        eprintln!("some clients did not leave within {bound:?}: their wills speak for them");
    }
    let summary = Summary::new(&fleet.tally, args.clients, began.elapsed());
    let text = match args.output {
        Output::Text => summary.text(),
        Output::Json => summary.json()? + "\n",
    };
    // Whoever read may be gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if fleet.tally.counts().connects == 0 {
        let why = fleet.tally.last_problem();
        bail!(
            "no client could connect to {}: {}; see that a broker listens there (`cloud-connector run`), or name another with --mqtt",
            args.mqtt,
            why.as_deref()
                .unwrap_or("stopped before there was an answer")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that happens until the end: the start, then a storm, then changes. Never ends.
async fn play(
    args: &SimulateArgs,
    fleet: &Fleet,
    clients: &[Arc<Client>],
    progress: Option<&Progress>,
) {
    rate::start(fleet, clients, args.connect_rate).await;
    let note = |what: &str| {
        if let Some(progress) = progress {
            progress.note(what);
        }
    };
    let storm = async {
        if let Some(lasts) = args.storm {
            note("the storm begins");
            fleet.set_storm(true);
            tokio::time::sleep(lasts).await;
            fleet.set_storm(false);
            note("the storm is over");
        }
    };
    let changes = async {
        if args.rate > 0 {
            rate::keep_changing(fleet, clients, args.rate).await;
        }
    };
    tokio::join!(storm, changes);
    std::future::pending::<()>().await;
}

async fn after(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

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

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
