//! `report`: counts over all organisations.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigSource, Output, block_on, printable};
use crate::runtime;

#[derive(Debug, Subcommand)]
pub(super) enum ReportCommand {
    /// How many connections each organisation has, the largest first
    ConnectionsByOrg(ReportArgs),
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// At most so many organisations
    #[arg(long, default_value_t = 1000)]
    limit: u32,
    /// How to print them
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(command: &ReportCommand) -> Result<ExitCode> {
    let ReportCommand::ConnectionsByOrg(args) = command;
    let config = args.source.load()?.config;
    let (counts, without) = block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let counts = store.count_by_org(args.limit).await;
        store.close().await;
        Ok(counts?)
    })?;
    let mut out = std::io::stdout().lock();
    if args.output == Output::Json {
        let rows: Vec<_> = counts
            .iter()
            .map(|(org, count)| json!({"org_id": org.as_str(), "connections": count}))
            .collect();
        let all = json!({"organisations": rows, "without_organisation": without});
        writeln!(out, "{all}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{:<20}  {:>11}", "organisation", "connections")?;
    for (org, count) in &counts {
        writeln!(out, "{:<20}  {count:>11}", printable(org.as_str()))?;
    }
    writeln!(out, "{:<20}  {without:>11}", "(none)")?;
    Ok(ExitCode::SUCCESS)
}
