//! Parse, run one command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cloud_connector::cli::main()
}
