//! `update-presence`: runs one pass of the liveness sweep, for example from cron or after an outage.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;

use super::update::wait_for_signal;
use super::{ConfigSource, block_on};
use crate::config::Config;
use crate::runtime;
use domain::SystemClock;
use jobs::SweepOptions;

#[derive(Debug, Args)]
pub(super) struct UpdatePresenceArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Only print the number of silent clients
    #[arg(long)]
    dry_run: bool,
    /// Maximum number of clients to ping
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// End connections even if most of the pinged clients do not answer
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &UpdatePresenceArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    service::logs::init(&config.log)?;
    if let Some(reason) = why_nothing_to_do(&config) {
        println!("{reason}");
        return Ok(ExitCode::SUCCESS);
    }
    block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let result = sweep(&config, &repositories, args).await;
        repositories.maintenance.close().await;
        result
    })
}

/// Returns why the deployment has no sweep.
fn why_nothing_to_do(config: &Config) -> Option<&'static str> {
    if config.mqtt.url.is_none() {
        return Some("nothing to do: in embedded mode, the broker itself knows its connections");
    }
    if config.kafka.brokers.is_none() {
        return Some("nothing to do: the liveness sweep needs Kafka (kafka.brokers)");
    }
    let is_off = !runtime::has_liveness_sweep(config);
    is_off.then_some("nothing to do: presence.silent_after is 0")
}

async fn sweep(
    config: &Config,
    repositories: &store::Repositories,
    args: &UpdatePresenceArgs,
) -> Result<ExitCode> {
    // The process with the role `updaters` can have the same name.
    let suffix = format!(" process {}", std::process::id());
    let clock = Arc::new(SystemClock);
    let parts = runtime::liveness_sweep(config, repositories, clock, &suffix)?;
    let tasks = runtime::connect_sweep(&parts.connection).await?;
    let sweep = parts.sweep;
    if args.dry_run {
        println!("{} silent", sweep.count_silent().await?);
        return Ok(ExitCode::SUCCESS);
    }
    let options = SweepOptions {
        ignore_guard: args.force,
        max_clients: args.limit,
    };
    let summary = tokio::select! {
        summary = sweep.run_once(options) => summary?,
        () = wait_for_signal() => {
            sweep.release_lease().await;
            bail!("interrupted; connections that were ended stay ended");
        }
    };
    tasks.cancel();
    let Some(summary) = summary else {
        bail!("another process runs the liveness sweep at the moment; try again later");
    };
    println!("{summary}");
    Ok(if summary.is_failure() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
