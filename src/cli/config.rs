//! `config`: what is in effect, and why.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::ConfigSource;
use crate::config::DEFAULTS;

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Print the defaults with their comments instead: a start for a file of your own
    #[arg(long)]
    defaults: bool,
}

pub(super) fn run(args: &ConfigArgs) -> Result<ExitCode> {
    if args.defaults {
        print!("{DEFAULTS}");
    } else {
        print!("{}", args.source.load()?.to_annotated_toml());
    }
    Ok(ExitCode::SUCCESS)
}
