//! `certs`: creates a private CA and issues certificates.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use super::parse_client_id;
use crate::domain::ClientId;

/// File name stem of the CA certificate and key.
const CA: &str = "ca";
/// File name stem of the server certificate and key.
const SERVER: &str = "server";
const DEFAULT_DAYS: u32 = 365;
/// 100 years. The CA then expires within 1000 years, before the last date that X.509 can encode.
const MAX_DAYS: i64 = 36_500;
/// The CA is valid this many times longer than the server certificate.
const CA_DAYS_FACTOR: i64 = 10;

#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    /// Create a CA and a server certificate for the embedded broker
    Init(InitArgs),
    /// Issue a client certificate, or replace the server certificate
    Issue(IssueArgs),
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Folder for the files; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,
    /// Host name or IP address of the broker; can be repeated
    #[arg(long = "host", value_name = "HOST", default_values = ["localhost", "127.0.0.1"])]
    hosts: Vec<String>,
    /// Days until the server certificate expires; the CA is valid ten times longer
    #[arg(long, default_value_t = DEFAULT_DAYS,
          value_parser = clap::value_parser!(u32).range(..=MAX_DAYS))]
    days: u32,
}

#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    /// Client id, used as the common name of the certificate
    #[arg(value_name = "CLIENT_ID", required_unless_present = "server")]
    client_id: Option<String>,
    /// Replace the server certificate instead
    #[arg(long, conflicts_with = "client_id")]
    server: bool,
    /// Host name or IP address of the broker, with --server; can be repeated
    #[arg(long = "host", value_name = "HOST", default_values = ["localhost", "127.0.0.1"])]
    hosts: Vec<String>,
    /// Folder of the CA, also used for the new files
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,
    /// Days until the certificate expires
    #[arg(long, default_value_t = DEFAULT_DAYS,
          value_parser = clap::value_parser!(u32).range(..=MAX_DAYS))]
    days: u32,
}

pub(super) fn run(command: &CertsCommand) -> Result<ExitCode> {
    match command {
        CertsCommand::Init(args) => init(args)?,
        CertsCommand::Issue(args) => issue(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(args: &InitArgs) -> Result<()> {
    let (certificate, key) = file_paths(&args.dir, CA);
    for file in [&certificate, &key] {
        if file.exists() {
            bail!(
                "{} exists; choose another folder with --dir, or issue certificates with this CA: \
                 `cloud-connector certs issue`",
                file.display()
            );
        }
    }
    std::fs::create_dir_all(&args.dir).with_context(|| {
        format!(
            "cannot create {}; choose another folder with --dir",
            args.dir.display()
        )
    })?;
    let ca_days = i64::from(args.days) * CA_DAYS_FACTOR;
    let mut params = certificate_params("Cloud Connector private CA", ca_days);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    let ca = params.self_signed(&ca_key)?;
    write_atomically(&key, &ca_key.serialize_pem(), 0o600)?;
    write_atomically(&certificate, &ca.pem(), 0o644)?;
    let issuer = read_issuer(&args.dir, "--dir")?;
    issue_server(&args.dir, &issuer, &args.hosts, i64::from(args.days))?;
    println!(
        "Keep {} secret: its holder can impersonate any client.",
        key.display()
    );
    println!("Add to the configuration file:");
    let (server, server_key) = file_paths(&args.dir, SERVER);
    println!("  [broker.tls]");
    println!("  listen = \"0.0.0.0:8883\"");
    println!("  certificate = {}", toml_path(&server));
    println!("  key = {}", toml_path(&server_key));
    println!("  client_ca = {}", toml_path(&certificate));
    Ok(())
}

fn issue(args: &IssueArgs) -> Result<()> {
    let issuer = read_issuer(&args.dir, "--dir")?;
    let days = i64::from(args.days);
    let Some(client_id) = &args.client_id else {
        return issue_server(&args.dir, &issuer, &args.hosts, days);
    };
    let client = parse_client_id(client_id)?;
    print_paths(&issue_client(&args.dir, &issuer, &client, days)?);
    Ok(())
}

fn issue_client(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    client: &ClientId,
    days: i64,
) -> Result<(PathBuf, PathBuf)> {
    if matches!(client.as_str(), CA | SERVER | "." | "..") {
        bail!("client id {client:?} is reserved for files of the CA; choose another client id");
    }
    let mut params = certificate_params(client.as_str(), days);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(dir, client.as_str(), &params, issuer)
}

/// A CA created by `certs init`, for `simulate --tls-dir`.
pub(super) struct CertificateAuthority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// Opens the CA in `dir`. `flag` is the option that named the folder, for error messages.
    pub(super) fn open(dir: &Path, flag: &str) -> Result<Self> {
        let issuer = read_issuer(dir, flag)?;
        Ok(Self {
            dir: dir.to_owned(),
            issuer,
        })
    }

    /// Returns the path of the CA certificate.
    pub(super) fn certificate(&self) -> PathBuf {
        file_paths(&self.dir, CA).0
    }

    /// Returns the paths of the client's certificate and key. Issues them if they do not exist.
    pub(super) fn client_certificate(&self, client: &ClientId) -> Result<(PathBuf, PathBuf)> {
        let (certificate, key) = file_paths(&self.dir, client.as_str());
        if certificate.exists() && key.exists() {
            return Ok((certificate, key));
        }
        issue_client(&self.dir, &self.issuer, client, i64::from(DEFAULT_DAYS))
    }
}

fn issue_server(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    hosts: &[String],
    days: i64,
) -> Result<()> {
    let mut params = certificate_params(&hosts[0], days);
    params.subject_alt_names = CertificateParams::new(hosts.to_vec())
        .context("--host: not a host name or IP address; correct the value")?
        .subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    print_paths(&sign(dir, SERVER, &params, issuer)?);
    Ok(())
}

fn sign(
    dir: &Path,
    file_stem: &str,
    params: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    let (certificate_file, key_file) = file_paths(dir, file_stem);
    write_atomically(&key_file, &key.serialize_pem(), 0o600)?;
    write_atomically(&certificate_file, &certificate.pem(), 0o644)?;
    Ok((certificate_file, key_file))
}

fn print_paths((certificate, key): &(PathBuf, PathBuf)) {
    println!("{}", certificate.display());
    println!("{}", key.display());
}

fn certificate_params(common_name: &str, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let now = time::OffsetDateTime::now_utc();
    params.not_after = now + time::Duration::days(days);
    // Valid since yesterday, for peers whose clock is slow.
    params.not_before = now.min(params.not_after) - time::Duration::days(1);
    params
}

fn read_issuer(dir: &Path, flag: &str) -> Result<Issuer<'static, KeyPair>> {
    let (certificate, key) = file_paths(dir, CA);
    let read = |file: &Path| {
        std::fs::read_to_string(file).with_context(|| {
            format!(
                "cannot read {}; create a CA with `cloud-connector certs init`, or pass its folder \
                 with {flag}",
                file.display()
            )
        })
    };
    let (certificate_pem, key_pem) = (read(&certificate)?, read(&key)?);
    let key = KeyPair::from_pem(&key_pem)
        .with_context(|| format!("{} is not a private key", key.display()))?;
    Issuer::from_ca_cert_pem(&certificate_pem, key)
        .with_context(|| format!("{} is not a certificate", certificate.display()))
}

/// Returns the paths of a certificate and its key.
fn file_paths(dir: &Path, stem: &str) -> (PathBuf, PathBuf) {
    (
        dir.join(format!("{stem}.pem")),
        dir.join(format!("{stem}.key")),
    )
}

/// Writes a temporary file and renames it. A broker that reloads its certificates never reads a
/// partial file.
fn write_atomically(file: &Path, text: &str, mode: u32) -> Result<()> {
    let temporary = PathBuf::from(format!("{}.new", file.display()));
    let write = || -> std::io::Result<()> {
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(mode)
            .open(&temporary)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&temporary, file)
    };
    write().with_context(|| {
        format!(
            "cannot write {}; choose another folder with --dir",
            file.display()
        )
    })
}

/// Returns the absolute path as a quoted TOML string.
fn toml_path(path: &Path) -> toml::Value {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    toml::Value::String(path.display().to_string())
}
