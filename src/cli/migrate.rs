//! `migrate`: brings the database up to date.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::{ConfigSource, block_on};
use crate::kafka::{TopicState, create_topics};
use crate::{runtime, telemetry};

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Make the topics of the queue, too, where they are missing
    #[arg(long)]
    topics: bool,
}

pub(super) fn run(args: &MigrateArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    telemetry::logs::init(&config.log)?;
    if args.topics && config.kafka.brokers.is_none() {
        bail!("--topics: there is no queue to make topics in; set kafka.brokers");
    }
    block_on(async {
        println!("{} is up to date", runtime::migrate(&config).await?);
        if args.topics {
            for (topic, state) in create_topics(&config.kafka, &config.topics()).await? {
                match state {
                    TopicState::Made => println!("{topic} is made"),
                    TopicState::Existed => println!("{topic} was there"),
                }
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
