//! `migrate`: brings the database up to date.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{ConfigSource, block_on};
use crate::{runtime, telemetry};

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    source: ConfigSource,
}

pub(super) fn run(args: &MigrateArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    telemetry::logs::init(&config.log)?;
    let database = block_on(async { runtime::migrate(&config).await })?;
    println!("{} is up to date", database.display());
    Ok(ExitCode::SUCCESS)
}
