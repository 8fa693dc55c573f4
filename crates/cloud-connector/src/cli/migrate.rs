//! `migrate`: applies database migrations and, with `--topics`, creates Kafka topics.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::{ConfigSource, block_on};
use crate::runtime;
use kafka::{TopicCreation, create_topics};

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Also create the Kafka topics that do not exist
    #[arg(long = "topics")]
    creates_topics: bool,
}

pub(super) fn run(args: &MigrateArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    service::logs::init(&config.log)?;
    if args.creates_topics && config.kafka.brokers.is_none() {
        bail!("--topics: Kafka is not configured; set kafka.brokers");
    }
    block_on(async {
        let database = runtime::migrate(&config).await?;
        println!("database {database} is up to date");
        if args.creates_topics {
            for (topic, outcome) in create_topics(&config.kafka, &config.kafka_topics()).await? {
                match outcome {
                    TopicCreation::Created => println!("created topic {topic}"),
                    TopicCreation::AlreadyExisted => println!("topic {topic} exists"),
                }
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
