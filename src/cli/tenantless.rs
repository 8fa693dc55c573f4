//! `tenantless`: clients that belong to nobody, for operators. Straight on the store; no caller of the
//! REST interface ever sees them.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigSource, Output, block_on, client_ids};
use crate::runtime;

const NOBODY: &str =
    "none of these is a client without an organisation; `tenantless list` shows them";

#[derive(Debug, Subcommand)]
pub(super) enum TenantlessCommand {
    /// List them, those that wait longest first
    List(ListArgs),
    /// Look some up again at the next run, with all their attempts
    Retry(RetryArgs),
    /// Forget some: they are recorded again when they come online again
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// At most so many
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// How to print them
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Whom
    #[arg(
        value_name = "CLIENT",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    clients: Vec<String>,
    /// All of them
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
pub(super) struct ForgetArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Whom
    #[arg(value_name = "CLIENT", required = true)]
    clients: Vec<String>,
}

pub(super) fn run(command: &TenantlessCommand) -> Result<ExitCode> {
    match command {
        TenantlessCommand::List(args) => list(args),
        TenantlessCommand::Retry(args) => {
            let config = args.source.load()?.config;
            let clients = client_ids(&args.clients)?;
            let named = (!args.all).then_some(clients.as_slice());
            let done = block_on(async {
                let store = runtime::open_for_cli(&config).await?;
                let done = store.reset_tenantless(named).await;
                store.close().await;
                Ok(done?)
            })?;
            if done == 0 && !args.all {
                bail!(NOBODY);
            }
            println!("{done} will be looked up at the next run of `update-tenantless`");
            Ok(ExitCode::SUCCESS)
        }
        TenantlessCommand::Forget(args) => {
            let config = args.source.load()?.config;
            let clients = client_ids(&args.clients)?;
            let done = block_on(async {
                let store = runtime::open_for_cli(&config).await?;
                let done = store.delete_tenantless(&clients).await;
                store.close().await;
                Ok(done?)
            })?;
            if done == 0 {
                bail!(NOBODY);
            }
            println!("{done} forgotten");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    let most = config.updaters.tenant_max_attempts;
    let (found, counts) = block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let found = store.list_tenantless(args.limit).await;
        let counts = store.count_tenantless(most).await;
        store.close().await;
        Ok((found?, counts?))
    })?;
    let mut out = std::io::stdout().lock();
    if args.output == Output::Json {
        let rows: Vec<_> = found
            .iter()
            .map(|row| {
                json!({
                    "client_id": row.client_id.as_str(), "failures": row.failures,
                    "looked_up": row.looked_up, "online_received_at": row.online_received_at,
                })
            })
            .collect();
        let all =
            json!({"waiting": counts.waiting, "exhausted": counts.exhausted, "clients": rows});
        writeln!(out, "{all}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{} wait for their organisation, {} were looked up {most} times in vain",
        counts.waiting, counts.exhausted
    )?;
    if found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{:<36}  {:>8}  {:<20}  {:<20}",
        "client", "failures", "last looked up", "last seen"
    )?;
    for row in &found {
        let looked_up = match row.looked_up {
            Some(at) if at.as_second() > 0 => format!("{at:.0}"),
            _ => "never".to_owned(),
        };
        writeln!(
            out,
            "{:<36}  {:>8}  {looked_up:<20}  {:<20}",
            super::printable(row.client_id.as_str()),
            row.failures,
            format!("{:.0}", row.online_received_at),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
