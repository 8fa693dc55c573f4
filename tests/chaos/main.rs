//! Nothing that was acknowledged is lost: a fleet at work while our processes are killed, paused and
//! restarted and the services around them restart. At the end table, API and dead letters are what
//! the model says, client by client.
//!
//! Without arguments this is the short form, which `make test` runs: one round on both set-ups at
//! once. `make chaos` is the long one. What happens comes from a seed, which is printed and can be
//! given; the machine's timing is the only thing that it cannot repeat.

mod check;
mod clients;
mod dialect;
mod gate;
mod link;
mod model;
mod options;
mod plan;
mod process;
mod random;
mod report;
mod run;
mod setup;
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "shared with the integration tests, which use the rest"
)]
#[path = "../it/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use options::Options;
use plan::Kind;
use run::Run;

/// From so many minutes on a run counts as a long one, and a slow machine takes longer for it: a set-up
/// has to live through this many kills.
const LONG: f64 = 20.0;
const LONG_KILLS: u64 = 100;

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("chaos: {why}");
            return ExitCode::from(2);
        }
    };
    // A socket for each client, on both set-ups.
    let _ = rlimit::increase_nofile_limit(20_000);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let all_well = runtime.block_on(async {
        println!("chaos: seed {}", options.seed);
        let runs = options.kinds.iter().map(|kind| {
            let (kind, options) = (*kind, options.clone());
            tokio::spawn(async move { run(kind, &options).await })
        });
        let runs: Vec<_> = runs.collect();
        let outcomes = async {
            let mut all_well = true;
            for outcome in runs {
                all_well &= outcome.await.unwrap_or(false);
            }
            all_well
        };
        tokio::select! {
            all_well = outcomes => all_well,
            () = told_to_end() => false,
        }
    });
    // Ends what still runs: our processes and the services, each with its task.
    drop(runtime);
    if all_well {
        ExitCode::SUCCESS
    } else {
        println!("chaos: to repeat it: {}", options.command());
        ExitCode::FAILURE
    }
}

/// Somebody wants it to end: the processes that it started must not be left behind.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let mut signals = kinds.map(|kind| signal(kind).expect("a signal"));
    let waits = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures::future::select_all(waits).await;
}

/// Runs one set-up and tells how it went.
async fn run(kind: Kind, options: &Options) -> bool {
    let began = Instant::now();
    let until = began + options.minutes.map_or(Duration::ZERO, minutes);
    let name = format!("chaos-{}-{}", kind.name(), std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder for logs");
    let mut run = match Run::start(kind, options.seed, &folder).await {
        Ok(run) => run,
        Err(why) => {
            println!("chaos {}: did not start: {why}", kind.name());
            println!("  logs: {}", folder.display());
            return false;
        }
    };
    let is_long = options.minutes.is_some_and(|minutes| minutes >= LONG);
    let outcome = run
        .rounds(until, if is_long { LONG_KILLS } else { 0 })
        .await;
    let line = run.line();
    let seconds = began.elapsed().as_secs();
    match outcome {
        Ok(()) => {
            println!("{line}, 0 differences, {seconds} s");
            drop(run);
            let _ = std::fs::remove_dir_all(&folder);
            true
        }
        Err(failure) => {
            report::failure(&run, &failure);
            println!(
                "{line}, {} differences, {seconds} s",
                failure.differences.len()
            );
            run.keep_logs();
            println!("  logs: {}", folder.display());
            false
        }
    }
}

fn minutes(count: f64) -> Duration {
    Duration::from_secs_f64(count * 60.0)
}
