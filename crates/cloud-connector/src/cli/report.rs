//! `report`: prints statistics about all organizations.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigSource, OutputFormat, block_on, escape_for_terminal};
use crate::runtime;

#[derive(Debug, Subcommand)]
pub(super) enum ReportCommand {
    /// Print the number of connections of each organization; the largest number comes first
    ConnectionsByOrg(ReportArgs),
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Maximum number of organizations to print
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u32,
    /// Output format
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text)]
    output_format: OutputFormat,
}

pub(super) fn run(command: &ReportCommand) -> Result<ExitCode> {
    let ReportCommand::ConnectionsByOrg(args) = command;
    let config = args.config_source.load()?.config;
    let (counts, tenantless) = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let counts = repositories.maintenance.count_by_org(args.limit).await;
        repositories.maintenance.close().await;
        Ok(counts?)
    })?;
    let mut out = std::io::stdout().lock();
    if args.output_format == OutputFormat::Json {
        let rows: Vec<_> = counts
            .iter()
            .map(|(org, count)| json!({"org_id": org.as_str(), "connections": count}))
            .collect();
        let report = json!({"organizations": rows, "tenantless": tenantless});
        writeln!(out, "{report}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{:<20}  {:>11}", "organization", "connections")?;
    for (org, count) in &counts {
        writeln!(
            out,
            "{:<20}  {count:>11}",
            escape_for_terminal(org.as_str())
        )?;
    }
    writeln!(out, "{:<20}  {tenantless:>11}", "(tenantless)")?;
    Ok(ExitCode::SUCCESS)
}
