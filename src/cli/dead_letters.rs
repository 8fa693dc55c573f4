//! `dead-letters`: what could never be processed. Straight on the store, so that it also works while
//! the connector is down.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{ConfigSource, Output, block_on, printable};
use crate::config::{Config, HumanDuration};
use crate::domain::{ClientId, Clock as _, SystemClock, clock};
use crate::ingest::NextStage;
use crate::kafka::Producer;
use crate::protocol::InboundMessage;
use crate::runtime;
use crate::store::{DeadLetterFilter, Store, StoredDeadLetter};

/// How long a replay is waited for before it is left to itself.
const REPLAY_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub(super) enum DeadLettersCommand {
    /// List them, the latest first
    List(ListArgs),
    /// Show one, with its payload
    Show(ShowArgs),
    /// Process some again, after an upgrade that can read them: who has said something since stays as
    /// it is
    Replay(ReplayArgs),
    /// Forget some
    Purge(PurgeArgs),
}

#[derive(Debug, Args)]
struct Selector {
    /// Of this client only
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// For this reason only: `not_json`, `wrong_shape`, `too_large`, `too_long`, `characters`,
    /// `unknown_topic`, `refused`
    #[arg(long)]
    reason: Option<String>,
    /// That came last longer ago than this only, as in `24h`
    #[arg(long, value_name = "SPAN")]
    older_than: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    source: ConfigSource,
    #[command(flatten)]
    which: Selector,
    /// At most so many
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// How to print them
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Its number in the list
    number: i64,
    /// Print the payload alone, byte for byte
    #[arg(long)]
    raw: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text, conflicts_with = "raw")]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Their numbers in the list
    #[arg(required = true)]
    numbers: Vec<i64>,
}

#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    source: ConfigSource,
    #[command(flatten)]
    which: Selector,
    /// All of them
    #[arg(long, conflicts_with_all = ["client", "reason", "older_than"])]
    all: bool,
}

pub(super) fn run(command: &DeadLettersCommand) -> Result<ExitCode> {
    match command {
        DeadLettersCommand::List(args) => list(args),
        DeadLettersCommand::Show(args) => show(args),
        DeadLettersCommand::Replay(args) => replay(args),
        DeadLettersCommand::Purge(args) => purge(args),
    }
}

impl Selector {
    fn filter(&self) -> Result<DeadLetterFilter> {
        let client = match &self.client {
            Some(name) => Some(
                ClientId::new(name)
                    .map_err(|why| anyhow::anyhow!("--client: {name:?} is no client id: {why}"))?,
            ),
            None => None,
        };
        let before = match &self.older_than {
            Some(text) => {
                let span: HumanDuration = text
                    .parse()
                    .map_err(|why| anyhow::anyhow!("--older-than: {why}"))?;
                Some(clock::before(SystemClock.now(), span.get()))
            }
            None => None,
        };
        Ok(DeadLetterFilter {
            client,
            reason: self.reason.clone(),
            before,
            replay_asked: false,
        })
    }
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    let filter = args.which.filter()?;
    let letters = block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let letters = store.list_dead_letters(&filter, args.limit).await;
        store.close().await;
        Ok(letters?)
    })?;
    let mut out = std::io::stdout().lock();
    if args.output == Output::Json {
        let all: Vec<Value> = letters.iter().map(|kept| as_json(kept, false)).collect();
        writeln!(out, "{}", Value::Array(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    if letters.is_empty() {
        writeln!(out, "no dead letters")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{:>8}  {:<20}  {:>5}  {:<13}  {:>8}  {:<36}  what was wrong",
        "number", "last received", "times", "reason", "bytes", "client"
    )?;
    for kept in &letters {
        let letter = &kept.letter;
        writeln!(
            out,
            "{:>8}  {:<20}  {:>5}  {:<13}  {:>8}  {:<36}  {}",
            kept.id,
            format!("{:.0}", letter.received),
            kept.times,
            letter.reason,
            letter.size,
            client(kept),
            printable(&letter.detail),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    let kept = block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let kept = find(&*store, args.number).await;
        store.close().await;
        kept
    })?;
    let mut out = std::io::stdout().lock();
    if args.raw {
        out.write_all(&kept.letter.payload)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.output == Output::Json {
        writeln!(out, "{}", as_json(&kept, true))?;
        return Ok(ExitCode::SUCCESS);
    }
    let letter = &kept.letter;
    writeln!(out, "number    {}", kept.id)?;
    writeln!(out, "client    {}", client(&kept))?;
    writeln!(out, "topic     {}", printable(&letter.topic))?;
    writeln!(
        out,
        "reason    {}: {}",
        letter.reason,
        printable(&letter.detail)
    )?;
    writeln!(out, "received  {} times", kept.times)?;
    writeln!(out, "first     {}", kept.first_received)?;
    writeln!(out, "last      {}", letter.received)?;
    writeln!(out, "size      {} bytes", letter.size)?;
    writeln!(out, "sha256    {}", letter.sha256)?;
    if !letter.is_whole() {
        let kept = letter.payload.len();
        writeln!(out, "          (only the first {kept} bytes are kept)")?;
    }
    writeln!(out)?;
    if let Ok(text) = std::str::from_utf8(&letter.payload) {
        for line in text.lines() {
            writeln!(out, "{}", printable(line))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "not text; in hexadecimal (--raw prints the bytes):")?;
    for line in letter.payload.chunks(32) {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "{}", line.join(" "))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let mut code = ExitCode::SUCCESS;
        for number in &args.numbers {
            let (said, is_done) = match replay_one(&config, &*store, *number).await {
                Ok(done) => done,
                Err(error) => (error.to_string(), false),
            };
            println!("{number}: {said}");
            if !is_done {
                code = ExitCode::FAILURE;
            }
        }
        store.close().await;
        Ok(code)
    })
}

async fn replay_one(config: &Config, store: &dyn Store, number: i64) -> Result<(String, bool)> {
    let kept = find(store, number).await?;
    if !kept.letter.is_whole() {
        bail!("it was too large to keep whole, and cannot be processed again");
    }
    if config.kafka.brokers.is_some() {
        queue_again(config, store, &kept).await
    } else {
        ask_and_wait(store, &kept).await
    }
}

/// Puts it where it came from, so that it is processed in one order with its client's messages.
async fn queue_again(
    config: &Config,
    store: &dyn Store,
    kept: &StoredDeadLetter,
) -> Result<(String, bool)> {
    let queue = NextStage::Kafka {
        producer: Producer::new(&config.kafka)?,
        ingress: config.kafka.ingress_topic.as_str().into(),
        answers: config.kafka.answers_topic.as_str().into(),
    };
    let letter = &kept.letter;
    let message = InboundMessage {
        topic: letter.topic.clone(),
        payload: letter.payload.clone(),
        replayed: false,
        again: true,
        received: letter.received,
        cut: None,
    };
    let topics = runtime::topics(config);
    if !queue.take(&topics, message, 0).await.durable().await {
        bail!("the queue did not take it; see `cloud-connector doctor`");
    }
    store.finish_replay(kept.id, kept.times).await?;
    let said = "in the queue again; if it is refused again, it is listed under a new number";
    Ok((said.to_owned(), true))
}

/// Leaves it to the connector that has the clients, and waits for what it makes of it.
async fn ask_and_wait(store: &dyn Store, kept: &StoredDeadLetter) -> Result<(String, bool)> {
    store.request_replay(kept.id, SystemClock.now()).await?;
    let deadline = tokio::time::Instant::now() + REPLAY_WITHIN;
    while tokio::time::Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
        match store.dead_letter(kept.id).await? {
            None => return Ok(("processed".to_owned(), true)),
            Some(now) if now.replay_asked.is_none() => {
                let letter = now.letter;
                let said = format!("refused again: {}: {}", letter.reason, letter.detail);
                return Ok((said, false));
            }
            Some(_) => {}
        }
    }
    let said = "asked for, and not taken up yet; the connector does so when it runs";
    Ok((said.to_owned(), false))
}

fn purge(args: &PurgeArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    let filter = args.which.filter()?;
    if filter == DeadLetterFilter::default() && !args.all {
        bail!(
            "purge forgets for good: say which with --client, --reason or --older-than, or --all"
        );
    }
    let forgotten = block_on(async {
        let store = runtime::open_for_cli(&config).await?;
        let forgotten = store.purge_dead_letters(&filter).await;
        store.close().await;
        Ok(forgotten?)
    })?;
    println!("{forgotten} forgotten");
    Ok(ExitCode::SUCCESS)
}

async fn find(store: &dyn Store, number: i64) -> Result<StoredDeadLetter> {
    store.dead_letter(number).await?.with_context(|| {
        format!("there is no dead letter {number}; `cloud-connector dead-letters list` shows them")
    })
}

fn client(kept: &StoredDeadLetter) -> String {
    let client = kept.letter.client.as_ref();
    client.map_or_else(|| "-".to_owned(), |client| printable(client.as_str()))
}

fn as_json(kept: &StoredDeadLetter, with_payload: bool) -> Value {
    let letter = &kept.letter;
    let mut value = json!({
        "number": kept.id,
        "client_id": letter.client.as_ref().map(ClientId::as_str),
        "topic": letter.topic,
        "reason": letter.reason,
        "detail": letter.detail,
        "times": kept.times,
        "first_received": kept.first_received,
        "last_received": letter.received,
        "size": letter.size,
        "sha256": letter.sha256,
    });
    if with_payload {
        value["is_whole"] = json!(letter.is_whole());
        value["payload"] = json!(String::from_utf8_lossy(&letter.payload));
    }
    value
}
