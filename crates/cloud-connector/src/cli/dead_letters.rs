//! `dead-letters`: counts, lists, shows, replays and deletes dead letters.
//!
//! The commands access the database directly, so they also work while the connector is down. Only
//! `replay` without Kafka needs a running connector.

mod summary;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{ConfigSource, OutputFormat, block_on, escape_for_terminal, parse_client_id};
use crate::config::Config;
use crate::runtime;
use domain::{ClientId, Clock as _, RejectReason, SystemClock, clock};
use kafka::Producer;
use pipeline::ingest::{ForwardDestination, forward_replayed_message};
use protocol::InboundMessage;
use service::settings::HumanDuration;
use store::{DeadLetterFilter, DeadLetterRepository, MAINTENANCE_CHUNK_ROWS, StoredDeadLetter};

/// Maximum time that `replay` waits until the running connector has processed a dead letter.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(10);
const REPLAY_POLL_INTERVAL: Duration = Duration::from_millis(100);
const HEX_BYTES_PER_LINE: usize = 32;

#[derive(Debug, Subcommand)]
pub(super) enum DeadLettersCommand {
    /// Print totals per reason: dead letters, occurrences, clients, and the time of the latest
    Summary(summary::SummaryArgs),
    /// List dead letters; the dead letter that was received last comes first
    List(ListArgs),
    /// Show one dead letter with its payload
    Show(ShowArgs),
    /// Process dead letters again, for example after an upgrade; if the client has sent newer
    /// messages, these take precedence
    Replay(ReplayArgs),
    /// Delete dead letters
    Purge(PurgeArgs),
}

#[derive(Debug, Args)]
struct DeadLetterSelector {
    /// Select only dead letters of this client
    #[arg(long = "client", value_name = "CLIENT")]
    client_id: Option<String>,
    /// Select only dead letters with this reason
    #[arg(long, value_parser = reason_parser())]
    reason: Option<RejectReason>,
    /// Select only dead letters that were last received at least this long ago, such as 24h
    #[arg(long = "older-than", value_name = "DURATION")]
    min_age: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    #[command(flatten)]
    selector: DeadLetterSelector,
    /// Maximum number of dead letters to list
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
    /// Output format
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text)]
    output_format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Id of the dead letter; `dead-letters list` prints the ids
    #[arg(value_name = "ID")]
    dead_letter_id: i64,
    /// Print only the bytes of the payload, without any changes
    #[arg(long = "raw")]
    prints_raw_payload: bool,
    /// Output format
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text,
          conflicts_with = "prints_raw_payload")]
    output_format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Ids of the dead letters; `dead-letters list` prints the ids
    #[arg(value_name = "ID", required = true)]
    dead_letter_ids: Vec<i64>,
}

#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    #[command(flatten)]
    selector: DeadLetterSelector,
    /// Delete all dead letters
    #[arg(long = "all", conflicts_with_all = ["client_id", "reason", "min_age"])]
    deletes_all: bool,
}

pub(super) fn run(command: &DeadLettersCommand) -> Result<ExitCode> {
    match command {
        DeadLettersCommand::Summary(args) => summary::run(args),
        DeadLettersCommand::List(args) => list(args),
        DeadLettersCommand::Show(args) => show(args),
        DeadLettersCommand::Replay(args) => replay(args),
        DeadLettersCommand::Purge(args) => purge(args),
    }
}

/// Returns a parser that accepts the names of [`RejectReason`]. For any other text, clap prints the
/// valid names.
fn reason_parser() -> impl TypedValueParser<Value = RejectReason> {
    let names = RejectReason::ALL.map(|reason| {
        let help = reason.description().trim_end_matches('.');
        PossibleValue::new(reason.as_str()).help(help)
    });
    PossibleValuesParser::new(names).try_map(|name| name.parse::<RejectReason>())
}

impl DeadLetterSelector {
    fn to_filter(&self) -> Result<DeadLetterFilter> {
        let client = match &self.client_id {
            Some(id) => Some(parse_client_id(id).map_err(|error| anyhow!("--client: {error}"))?),
            None => None,
        };
        let received_before = match &self.min_age {
            Some(text) => {
                let age: HumanDuration = text
                    .parse()
                    .map_err(|error| anyhow!("--older-than: {error}"))?;
                Some(clock::saturating_sub(SystemClock.now(), age.get()))
            }
            None => None,
        };
        Ok(DeadLetterFilter {
            client,
            reason: self.reason,
            received_before,
            replay_requested: false,
        })
    }
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let filter = args.selector.to_filter()?;
    let dead_letters = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let dead_letters = repositories
            .dead_letters
            .list_dead_letters(&filter, args.limit)
            .await;
        repositories.maintenance.close().await;
        Ok(dead_letters?)
    })?;
    let mut out = std::io::stdout().lock();
    if args.output_format == OutputFormat::Json {
        let list: Vec<Value> = dead_letters.iter().map(metadata_json).collect();
        writeln!(out, "{}", Value::Array(list))?;
        return Ok(ExitCode::SUCCESS);
    }
    if dead_letters.is_empty() {
        writeln!(out, "no dead letters")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{:>8}  {:<20}  {:>11}  {:<20}  {:>8}  {:<36}  detail",
        "id", "last received", "occurrences", "reason", "bytes", "client"
    )?;
    for dead_letter in &dead_letters {
        writeln!(
            out,
            "{:>8}  {:<20}  {:>11}  {:<20}  {:>8}  {:<36}  {}",
            dead_letter.id,
            format!("{:.0}", dead_letter.last_received),
            dead_letter.occurrences,
            dead_letter.reason,
            dead_letter.payload_size,
            client_id_text(dead_letter),
            escape_for_terminal(&dead_letter.detail),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let dead_letter = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let dead_letter = find_dead_letter(&*repositories.dead_letters, args.dead_letter_id).await;
        repositories.maintenance.close().await;
        dead_letter
    })?;
    let mut out = std::io::stdout().lock();
    if args.prints_raw_payload {
        out.write_all(&dead_letter.payload)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.output_format == OutputFormat::Json {
        let mut json = metadata_json(&dead_letter);
        json["is_complete"] = json!(dead_letter.is_complete());
        json["payload"] = json!(String::from_utf8_lossy(&dead_letter.payload));
        writeln!(out, "{json}")?;
        return Ok(ExitCode::SUCCESS);
    }
    print_dead_letter(&mut out, &dead_letter)?;
    Ok(ExitCode::SUCCESS)
}

fn print_dead_letter(out: &mut impl std::io::Write, dead_letter: &StoredDeadLetter) -> Result<()> {
    writeln!(out, "id              {}", dead_letter.id)?;
    writeln!(out, "client          {}", client_id_text(dead_letter))?;
    writeln!(
        out,
        "topic           {}",
        escape_for_terminal(&dead_letter.topic)
    )?;
    writeln!(out, "reason          {}", dead_letter.reason)?;
    writeln!(
        out,
        "detail          {}",
        escape_for_terminal(&dead_letter.detail)
    )?;
    writeln!(out, "occurrences     {}", dead_letter.occurrences)?;
    writeln!(out, "first received  {}", dead_letter.first_received)?;
    writeln!(out, "last received   {}", dead_letter.last_received)?;
    writeln!(out, "size            {} bytes", dead_letter.payload_size)?;
    writeln!(out, "sha256          {}", dead_letter.sha256)?;
    if !dead_letter.is_complete() {
        let stored_bytes = dead_letter.payload.len();
        writeln!(out, "stored          only the first {stored_bytes} bytes")?;
    }
    writeln!(out)?;
    if let Ok(text) = std::str::from_utf8(&dead_letter.payload) {
        for line in text.lines() {
            writeln!(out, "{}", escape_for_terminal(line))?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "payload is not UTF-8; hexadecimal (--raw prints the bytes):"
    )?;
    for line in dead_letter.payload.chunks(HEX_BYTES_PER_LINE) {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "{}", hex.join(" "))?;
    }
    Ok(())
}

fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let mut code = ExitCode::SUCCESS;
        for id in &args.dead_letter_ids {
            match replay_dead_letter(&config, &*repositories.dead_letters, *id).await {
                Ok(outcome) => println!("{id}: {outcome}"),
                Err(error) => {
                    println!("{id}: {error}");
                    code = ExitCode::FAILURE;
                }
            }
        }
        repositories.maintenance.close().await;
        Ok(code)
    })
}

/// Replays one dead letter. Returns a description of the outcome, or an error if the dead letter
/// was not processed.
async fn replay_dead_letter(
    config: &Config,
    dead_letters: &dyn DeadLetterRepository,
    dead_letter_id: i64,
) -> Result<&'static str> {
    let dead_letter = find_dead_letter(dead_letters, dead_letter_id).await?;
    if !dead_letter.is_complete() {
        bail!("the stored payload is truncated and cannot be replayed");
    }
    if config.kafka.brokers.is_some() {
        replay_through_kafka(config, dead_letters, &dead_letter).await
    } else {
        replay_in_connector(dead_letters, &dead_letter).await
    }
}

/// Produces the message to Kafka. The message goes to the partition of the client, so the recorder
/// processes it in a defined order with the client's other messages.
async fn replay_through_kafka(
    config: &Config,
    dead_letters: &dyn DeadLetterRepository,
    dead_letter: &StoredDeadLetter,
) -> Result<&'static str> {
    let kafka = ForwardDestination::Kafka {
        producer: Producer::new(&config.kafka)?,
        ingress_topic: config.kafka.ingress_topic.as_str().into(),
        answers_topic: config.kafka.answers_topic.as_str().into(),
    };
    let message = InboundMessage {
        topic: dead_letter.topic.clone(),
        payload: dead_letter.payload.clone(),
        retained: false,
        is_operator_replay: true,
        is_last_will: None,
        is_takeover: false,
        received_at: dead_letter.last_received,
        ingest_stamp: None,
        truncated_from: None,
    };
    let topics = runtime::topic_scheme(config);
    let pending_write = forward_replayed_message(&kafka, &topics, message).await;
    if !pending_write.wait_until_durable().await {
        bail!("Kafka did not acknowledge the message; run `cloud-connector doctor`");
    }
    dead_letters
        .finish_replay(dead_letter.id, dead_letter.occurrences)
        .await?;
    Ok("produced to Kafka; if the message is rejected again, it is listed under a new id")
}

/// Requests a replay from the running connector, and waits until the connector has processed the
/// dead letter.
async fn replay_in_connector(
    dead_letters: &dyn DeadLetterRepository,
    dead_letter: &StoredDeadLetter,
) -> Result<&'static str> {
    dead_letters
        .request_replay(dead_letter.id, SystemClock.now())
        .await?;
    let deadline = tokio::time::Instant::now() + REPLAY_TIMEOUT;
    while tokio::time::Instant::now() < deadline {
        tokio::time::sleep(REPLAY_POLL_INTERVAL).await;
        match dead_letters.find_dead_letter(dead_letter.id).await? {
            None => return Ok("processed"),
            Some(rejected) if rejected.replay_requested_at.is_none() => {
                let detail = escape_for_terminal(&rejected.detail);
                bail!("rejected again: {}: {detail}", rejected.reason);
            }
            Some(_) => {}
        }
    }
    bail!("replay requested, but not processed yet; the connector processes it when it runs")
}

fn purge(args: &PurgeArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let filter = args.selector.to_filter()?;
    if filter == DeadLetterFilter::default() && !args.deletes_all {
        bail!(
            "purge is irreversible; select with --client, --reason or --older-than, or pass --all"
        );
    }
    let deleted_count = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let deleted = purge_in_chunks(&*repositories.dead_letters, &filter).await;
        repositories.maintenance.close().await;
        deleted
    })?;
    println!("{deleted_count} deleted");
    Ok(ExitCode::SUCCESS)
}

/// Deletes the dead letters that match the filter, so that no statement deletes too many. Returns
/// the number of deleted dead letters.
async fn purge_in_chunks(
    dead_letters: &dyn DeadLetterRepository,
    filter: &DeadLetterFilter,
) -> Result<u64> {
    let mut deleted_count = 0;
    loop {
        let deleted = dead_letters
            .purge_dead_letters(filter, MAINTENANCE_CHUNK_ROWS)
            .await
            .with_context(|| format!("{deleted_count} deleted; run the command again"))?;
        deleted_count += deleted;
        if deleted < MAINTENANCE_CHUNK_ROWS.into() {
            return Ok(deleted_count);
        }
    }
}

async fn find_dead_letter(
    dead_letters: &dyn DeadLetterRepository,
    dead_letter_id: i64,
) -> Result<StoredDeadLetter> {
    dead_letters.find_dead_letter(dead_letter_id).await?.with_context(|| {
        format!(
            "no dead letter has id {dead_letter_id}; `cloud-connector dead-letters list` lists the \
             ids"
        )
    })
}

fn client_id_text(dead_letter: &StoredDeadLetter) -> String {
    let client = dead_letter.client.as_ref();
    client.map_or_else(
        || "-".to_owned(),
        |client| escape_for_terminal(client.as_str()),
    )
}

/// Returns a JSON object with all fields of a dead letter except the payload.
fn metadata_json(dead_letter: &StoredDeadLetter) -> Value {
    json!({
        "id": dead_letter.id,
        "client_id": dead_letter.client.as_ref().map(ClientId::as_str),
        "topic": dead_letter.topic,
        "reason": dead_letter.reason.as_str(),
        "detail": dead_letter.detail,
        "occurrences": dead_letter.occurrences,
        "first_received": dead_letter.first_received,
        "last_received": dead_letter.last_received,
        "size": dead_letter.payload_size,
        "sha256": dead_letter.sha256,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        selector: DeadLetterSelector,
    }

    #[test]
    fn every_reject_reason_is_accepted_and_an_unknown_reason_prints_the_valid_reasons() {
        for reason in RejectReason::ALL {
            let cli = TestCli::parse_from(["list", "--reason", reason.as_str()]);
            assert_eq!(cli.selector.reason, Some(reason));
        }
        let error = TestCli::try_parse_from(["list", "--reason", "unknown"]).unwrap_err();
        let error = error.to_string();
        for reason in RejectReason::ALL {
            assert!(error.contains(reason.as_str()), "{error}");
        }
    }
}
