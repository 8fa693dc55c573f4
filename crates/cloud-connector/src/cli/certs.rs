//! `certs`: creates a private CA and issues certificates.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use network::certificate_authority::{CertificateAuthority, CertificateFiles};

use super::parse_client_id;

const DEFAULT_VALIDITY_DAYS: u32 = 365;
/// Maximum validity of a server certificate: 100 years. The CA is then valid for 1000 years, which
/// is within the range of X.509 dates (before the year 10000).
const MAX_VALIDITY_DAYS: i64 = 36_500;

#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    /// Create a CA and a server certificate for the embedded broker
    Init(InitArgs),
    /// Issue a client certificate, or replace the server certificate
    Issue(IssueArgs),
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Folder for the certificates and keys; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,
    /// Host name or IP address of the broker; can be repeated
    #[arg(long = "host", value_name = "HOST", default_values = ["localhost", "127.0.0.1"])]
    hosts: Vec<String>,
    /// Days until the server certificate expires; the CA is valid ten times longer
    #[arg(long = "days", default_value_t = DEFAULT_VALIDITY_DAYS,
          value_parser = clap::value_parser!(u32).range(..=MAX_VALIDITY_DAYS))]
    validity_days: u32,
}

#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    /// Client id, used as the common name of the certificate
    #[arg(
        value_name = "CLIENT_ID",
        required_unless_present = "issues_server_certificate"
    )]
    client_id: Option<String>,
    /// Replace the server certificate instead of issuing a client certificate
    #[arg(long = "server", conflicts_with = "client_id")]
    issues_server_certificate: bool,
    /// With --server: host name or IP address of the broker; can be repeated
    #[arg(long = "host", value_name = "HOST", default_values = ["localhost", "127.0.0.1"])]
    hosts: Vec<String>,
    /// Folder of the CA; the new certificate and its key are written there
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,
    /// Days until the certificate expires
    #[arg(long = "days", default_value_t = DEFAULT_VALIDITY_DAYS,
          value_parser = clap::value_parser!(u32).range(..=MAX_VALIDITY_DAYS))]
    validity_days: u32,
}

pub(super) fn run(command: &CertsCommand) -> Result<ExitCode> {
    match command {
        CertsCommand::Init(args) => init(args)?,
        CertsCommand::Issue(args) => issue(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(args: &InitArgs) -> Result<()> {
    let ca = CertificateAuthority::create(&args.dir, args.validity_days)?;
    let server = ca.issue_server_certificate(&args.hosts, args.validity_days)?;
    print_paths(&server);
    println!(
        "Keep {} secret: its holder can impersonate any client.",
        ca.files().key.display()
    );
    println!("Add to the configuration file:");
    println!("  [broker.tls]");
    println!("  listen = \"0.0.0.0:8883\"");
    println!("  certificate = {}", toml_path(&server.certificate));
    println!("  key = {}", toml_path(&server.key));
    println!("  client_ca = {}", toml_path(&ca.files().certificate));
    Ok(())
}

fn issue(args: &IssueArgs) -> Result<()> {
    let ca = CertificateAuthority::open(&args.dir, "--dir")?;
    let files = match &args.client_id {
        Some(client_id) => {
            let client = parse_client_id(client_id)?;
            ca.issue_client_certificate(client.as_str(), args.validity_days)?
        }
        None => ca.issue_server_certificate(&args.hosts, args.validity_days)?,
    };
    print_paths(&files);
    Ok(())
}

fn print_paths(files: &CertificateFiles) {
    println!("{}", files.certificate.display());
    println!("{}", files.key.display());
}

/// Converts a path to an absolute path, and returns a quoted TOML string.
fn toml_path(path: &Path) -> toml::Value {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    toml::Value::String(path.display().to_string())
}
