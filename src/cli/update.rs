//! `update-stale`, `update-tenantless`: one run of an updater, for cron.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::{ConfigSource, block_on};
use crate::domain::{Clock as _, SystemClock};
use crate::jobs::{LookupJob, RunOptions, Summary};
use crate::{runtime, telemetry};

#[derive(Debug, Args)]
pub(super) struct UpdateArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Say what is due, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// No more clients than this
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Believe the lookup service even if it says of many at once that they belong to nobody
    #[arg(long)]
    force: bool,
}

pub(super) fn run(which: LookupJob, args: &UpdateArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    telemetry::logs::init(&config.log)?;
    block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let tenants = runtime::tenants(&config)?;
        let data_dir = config
            .data
            .dir
            .exists()
            .then_some(config.data.dir.as_path());
        let clock = Arc::new(SystemClock);
        let updater = runtime::lookup_updater(&config, store.clone(), tenants, data_dir, clock)?;
        let due = store
            .count_due(updater.due(which), SystemClock.now())
            .await?;
        if args.dry_run {
            println!("{due} due");
            store.close().await;
            return Ok(ExitCode::SUCCESS);
        }
        let bar = progress_bar(due.min(args.limit.unwrap_or(due)));
        let request = RunOptions {
            limit: args.limit,
            force: args.force,
        };
        let progress = |summary: &Summary| bar.set_position(summary.looked_up);
        let summary = updater.run(which, request, &progress).await;
        bar.finish_and_clear();
        store.close().await;
        let summary = summary?;
        println!("{summary}");
        Ok(if summary.is_failure() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    })
}

/// On a terminal only.
fn progress_bar(due: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(due);
    // The template is a constant that parses.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} ({per_sec}, {eta})") {
        bar.set_style(style);
    }
    bar
}
