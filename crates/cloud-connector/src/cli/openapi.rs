//! `openapi`: prints the OpenAPI document of the REST API.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::ConfigSource;

#[derive(Debug, Args)]
pub(super) struct OpenapiArgs {
    #[command(flatten)]
    config_source: ConfigSource,
}

pub(super) fn run(args: &OpenapiArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    print!("{}", api::openapi_json(&config.http.base_path));
    Ok(ExitCode::SUCCESS)
}
