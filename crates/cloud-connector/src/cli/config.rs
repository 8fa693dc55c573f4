//! `config`: prints the effective configuration.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::ConfigSource;
use crate::config::DEFAULT_CONFIG_TOML;

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    /// Print the default configuration with comments; the output can be used as a template for a
    /// configuration file
    #[arg(long)]
    defaults: bool,
}

pub(super) fn run(args: &ConfigArgs) -> Result<ExitCode> {
    if args.defaults {
        print!("{DEFAULT_CONFIG_TOML}");
    } else {
        print!("{}", args.config_source.load()?.to_annotated_toml());
    }
    Ok(ExitCode::SUCCESS)
}
