//! `tenantless`: lists, retries and deletes tenantless clients.
//!
//! The commands access the database directly, because no REST endpoint shows tenantless clients.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigSource, OutputFormat, block_on, escape_for_terminal, parse_client_id};
use crate::runtime;
use domain::ClientId;
use store::{LookupQueueRepository, MAINTENANCE_CHUNK_ROWS};

const NO_MATCH_ERROR: &str = "none of these clients is tenantless; `cloud-connector tenantless \
                              list` lists tenantless clients";

#[derive(Debug, Subcommand)]
pub(super) enum TenantlessCommand {
    /// List tenantless clients; the client whose last lookup is oldest comes first
    List(ListArgs),
    /// Set the number of failed lookups of tenantless clients to 0; the next run of
    /// `update-tenantless` looks up these clients
    Retry(RetryArgs),
    /// Delete clients from the database; a client is recorded again at its next online message
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Maximum number of clients to list
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
    /// Output format
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text)]
    output_format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Ids of the clients to look up again
    #[arg(
        value_name = "CLIENT",
        required_unless_present = "retries_all",
        conflicts_with = "retries_all"
    )]
    client_ids: Vec<String>,
    /// Look up all tenantless clients again
    #[arg(long = "all")]
    retries_all: bool,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Ids of the clients to delete
    #[arg(value_name = "CLIENT", required = true)]
    client_ids: Vec<String>,
}

pub(super) fn run(command: &TenantlessCommand) -> Result<ExitCode> {
    match command {
        TenantlessCommand::List(args) => list(args),
        TenantlessCommand::Retry(args) => retry(args),
        TenantlessCommand::Delete(args) => delete(args),
    }
}

fn retry(args: &RetryArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let clients = parse_client_ids(&args.client_ids)?;
    let reset_count = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let lookup_queue = &*repositories.lookup_queue;
        let reset = if args.retries_all {
            reset_all(lookup_queue).await
        } else {
            reset_clients(lookup_queue, &clients).await
        };
        repositories.maintenance.close().await;
        reset
    })?;
    if reset_count == 0 && !args.retries_all {
        bail!(NO_MATCH_ERROR);
    }
    println!("{reset_count} reset; the next run of `update-tenantless` looks up these clients");
    Ok(ExitCode::SUCCESS)
}

fn delete(args: &DeleteArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let clients = parse_client_ids(&args.client_ids)?;
    let deleted_count = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let deleted = delete_clients(&*repositories.lookup_queue, &clients).await;
        repositories.maintenance.close().await;
        deleted
    })?;
    if deleted_count == 0 {
        bail!(NO_MATCH_ERROR);
    }
    println!("{deleted_count} deleted");
    Ok(ExitCode::SUCCESS)
}

/// Resets the clients, so that no statement changes too many rows. Returns the number of reset
/// clients.
async fn reset_clients(
    lookup_queue: &dyn LookupQueueRepository,
    clients: &[ClientId],
) -> Result<u64> {
    let mut reset_count = 0;
    for chunk in clients.chunks(MAINTENANCE_CHUNK_ROWS as usize) {
        reset_count += lookup_queue.reset_tenantless_clients(chunk).await?;
    }
    Ok(reset_count)
}

/// Like [`reset_clients`], for all tenantless clients.
async fn reset_all(lookup_queue: &dyn LookupQueueRepository) -> Result<u64> {
    let mut reset_count = 0;
    let mut last_client: Option<ClientId> = None;
    loop {
        let mut clients = lookup_queue
            .reset_tenantless_clients_after(last_client.as_ref(), MAINTENANCE_CHUNK_ROWS)
            .await
            .with_context(|| format!("{reset_count} reset; run the command again"))?;
        reset_count += clients.len() as u64;
        last_client = clients.pop();
        if last_client.is_none() {
            return Ok(reset_count);
        }
    }
}

/// Deletes the clients, so that no statement deletes too many rows. Returns the number of deleted
/// clients.
async fn delete_clients(
    lookup_queue: &dyn LookupQueueRepository,
    clients: &[ClientId],
) -> Result<u64> {
    let mut deleted_count = 0;
    for chunk in clients.chunks(MAINTENANCE_CHUNK_ROWS as usize) {
        deleted_count += lookup_queue.delete_tenantless_clients(chunk).await?;
    }
    Ok(deleted_count)
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let max_attempts = config.updaters.tenant_max_attempts;
    let (clients, counts) = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let clients = repositories
            .lookup_queue
            .list_tenantless_clients(args.limit)
            .await;
        let counts = repositories
            .lookup_queue
            .count_tenantless_clients(max_attempts)
            .await;
        repositories.maintenance.close().await;
        Ok((clients?, counts?))
    })?;
    let mut out = std::io::stdout().lock();
    if args.output_format == OutputFormat::Json {
        let clients: Vec<_> = clients
            .iter()
            .map(|client| {
                json!({
                    "client_id": client.client_id.as_str(),
                    "failed_lookups": client.failed_lookups,
                    "last_lookup_at": client.last_lookup_at,
                    "online_received_at": client.online_received_at,
                })
            })
            .collect();
        let list = json!({
            "pending": counts.pending_clients,
            "gave_up": counts.exhausted_clients,
            "clients": clients,
        });
        writeln!(out, "{list}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{} pending, {} gave up after {max_attempts} attempts",
        counts.pending_clients, counts.exhausted_clients
    )?;
    if clients.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{:<36}  {:>14}  {:<20}  {:<20}",
        "client", "failed lookups", "last lookup", "last online"
    )?;
    for client in &clients {
        // A lookup time of 0 (the Unix epoch) marks a client whose next lookup is due at once, for
        // example after `tenantless retry`.
        let last_lookup = match client.last_lookup_at {
            Some(time) if time.as_second() > 0 => format!("{time:.0}"),
            _ => "never".to_owned(),
        };
        writeln!(
            out,
            "{:<36}  {:>14}  {last_lookup:<20}  {:<20}",
            escape_for_terminal(client.client_id.as_str()),
            client.failed_lookups,
            format!("{:.0}", client.online_received_at),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_client_ids(client_ids: &[String]) -> Result<Vec<ClientId>> {
    client_ids.iter().map(|id| parse_client_id(id)).collect()
}
