//! `update-inventory` and `update-tenantless`: each command runs one tenant lookup job once, for
//! example from cron.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigSource, block_on};
use crate::runtime;
use domain::{Clock as _, SystemClock};
use jobs::{LookupJob, RunOptions, RunSummary};

#[derive(Debug, Args)]
pub(super) struct UpdateArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Only print the number of clients that are due for a lookup
    #[arg(long)]
    dry_run: bool,
    /// Maximum number of clients to look up
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Apply "not found" results even if the mass-loss guard triggers
    #[arg(long)]
    force: bool,
}

pub(super) fn run(lookup_job: LookupJob, args: &UpdateArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    service::logs::init(&config.log)?;
    block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let tenants = runtime::tenant_lookup(&config)?;
        let data_dir = config
            .data
            .dir
            .exists()
            .then_some(config.data.dir.as_path());
        let clock = Arc::new(SystemClock);
        let job = runtime::tenant_lookup_job(
            &config,
            repositories.lookup_queue.clone(),
            tenants,
            data_dir,
            clock,
        )?;
        let due_count = repositories
            .lookup_queue
            .count_due_rows(job.due_criteria(lookup_job), SystemClock.now())
            .await?;
        if args.dry_run {
            println!("{due_count} due");
            repositories.maintenance.close().await;
            return Ok(ExitCode::SUCCESS);
        }
        let bar = progress_bar(due_count.min(args.limit.unwrap_or(due_count)));
        let options = RunOptions {
            max_rows: args.limit,
            allow_mass_loss: args.force,
        };
        let show_progress = |summary: &RunSummary| bar.set_position(summary.looked_up_clients);
        let summary = job
            .run_until(lookup_job, options, &show_progress, wait_for_signal())
            .await;
        bar.finish_and_clear();
        repositories.maintenance.close().await;
        let Some(summary) = summary? else {
            bail!("interrupted; the results of finished lookups are saved");
        };
        println!("{summary}");
        Ok(if summary.is_failure() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    })
}

/// Waits for SIGINT or SIGTERM. The run then releases its claims, so the next run can look up the
/// same clients immediately.
pub(super) async fn wait_for_signal() {
    let signals = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    );
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Returns a progress bar. The bar is hidden if standard error is not a terminal.
fn progress_bar(client_count: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(client_count);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} ({per_sec}, {eta})") {
        bar.set_style(style);
    }
    bar
}
