//! `man`: writes the manual pages of all commands.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory as _};

use super::Cli;

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Folder for the manual pages; is created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> Result<ExitCode> {
    let dir = &args.dir;
    let failed = || {
        let dir = dir.display();
        format!("cannot write manual pages to {dir}; give a folder that this user may change")
    };
    std::fs::create_dir_all(dir).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(failed)?;
    println!(
        "wrote the manual pages to {0}; `man -l {0}/cloud-connector.1` shows the first",
        dir.display()
    );
    Ok(ExitCode::SUCCESS)
}
