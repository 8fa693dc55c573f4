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
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash {
        script = unify_program_name(&script);
    }
    print_text(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the name of the program in one way. clap_complete 4.6 replaces the hyphen of the name by `__` in
/// the values of a variable of the bash script, and by `__subcmd__` in the patterns for these values, so the
/// script would complete nothing after a subcommand.
fn unify_program_name(script: &str) -> String {
    let name_in_patterns = PROGRAM.replace('-', "__subcmd__");
    let name_in_values = PROGRAM.replace('-', "__");
    script.replace(&name_in_patterns, &name_in_values)
}
