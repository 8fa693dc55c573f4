//! `openapi`: the document of the REST interface.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::ConfigSource;

#[derive(Debug, Args)]
pub(super) struct OpenapiArgs {
    #[command(flatten)]
    source: ConfigSource,
}

pub(super) fn run(args: &OpenapiArgs) -> Result<ExitCode> {
    let config = args.source.load()?.config;
    print!("{}", crate::api::document(&config.http.base_path));
    Ok(ExitCode::SUCCESS)
}
