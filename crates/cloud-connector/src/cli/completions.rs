//! `completions`: prints a completion script for a shell.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use super::Cli;
use super::output::print_text;

const PROGRAM: &str = "cloud-connector";

#[derive(Debug, Args)]
#[command(after_help = "Install the script:\n  \
    bash  cloud-connector completions bash > ~/.local/share/bash-completion/completions/cloud-connector\n  \
    zsh   cloud-connector completions zsh > ~/.zfunc/_cloud-connector   (with ~/.zfunc in fpath)\n  \
    fish  cloud-connector completions fish > ~/.config/fish/completions/cloud-connector.fish")]
pub(super) struct CompletionsArgs {
    /// Shell that loads the script
    #[arg(value_name = "SHELL")]
    shell: SupportedShell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<ExitCode> {
    let shell = match args.shell {
        SupportedShell::Bash => Shell::Bash,
        SupportedShell::Zsh => Shell::Zsh,
        SupportedShell::Fish => Shell::Fish,
    };
    // The crate panics if the reader of a pipe has exited, so the script is complete before it is printed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), PROGRAM, &mut script);
    print_text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
