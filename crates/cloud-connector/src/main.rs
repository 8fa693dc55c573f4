//! The `cloud-connector` executable. The command line is in [`cloud_connector::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    cloud_connector::cli::main()
}
