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
const CA_FILE_STEM: &str = "ca";
/// File name stem of the server certificate and key.
const SERVER_FILE_STEM: &str = "server";
const DEFAULT_VALIDITY_DAYS: u32 = 365;
/// Maximum validity of a server certificate: 100 years. The CA is then valid for 1000 years, which
/// is within the range of X.509 dates (before the year 10000).
const MAX_VALIDITY_DAYS: i64 = 36_500;
/// A CA is valid this many times longer than its server certificate.
const CA_VALIDITY_FACTOR: i64 = 10;

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
    let (certificate, key) = cert_and_key_paths(&args.dir, CA_FILE_STEM);
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
    let ca_validity_days = i64::from(args.validity_days) * CA_VALIDITY_FACTOR;
    let mut params = certificate_params("Cloud Connector private CA", ca_validity_days);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    let ca = params.self_signed(&ca_key)?;
    write_atomically(&key, &ca_key.serialize_pem(), 0o600)?;
    write_atomically(&certificate, &ca.pem(), 0o644)?;
    let issuer = read_issuer(&args.dir, "--dir")?;
    issue_server_certificate(
        &args.dir,
        &issuer,
        &args.hosts,
        i64::from(args.validity_days),
    )?;
    println!(
        "Keep {} secret: its holder can impersonate any client.",
        key.display()
    );
    println!("Add to the configuration file:");
    let (server, server_key) = cert_and_key_paths(&args.dir, SERVER_FILE_STEM);
    println!("  [broker.tls]");
    println!("  listen = \"0.0.0.0:8883\"");
    println!("  certificate = {}", toml_path(&server));
    println!("  key = {}", toml_path(&server_key));
    println!("  client_ca = {}", toml_path(&certificate));
    Ok(())
}

fn issue(args: &IssueArgs) -> Result<()> {
    let issuer = read_issuer(&args.dir, "--dir")?;
    let validity_days = i64::from(args.validity_days);
    let Some(client_id) = &args.client_id else {
        return issue_server_certificate(&args.dir, &issuer, &args.hosts, validity_days);
    };
    let client = parse_client_id(client_id)?;
    print_paths(&issue_client_certificate(
        &args.dir,
        &issuer,
        &client,
        validity_days,
    )?);
    Ok(())
}

fn issue_client_certificate(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    client: &ClientId,
    validity_days: i64,
) -> Result<(PathBuf, PathBuf)> {
    if matches!(
        client.as_str(),
        CA_FILE_STEM | SERVER_FILE_STEM | "." | ".."
    ) {
        bail!("client id {client:?} is reserved for files of the CA; choose another client id");
    }
    let mut params = certificate_params(client.as_str(), validity_days);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    create_certificate(dir, client.as_str(), &params, issuer)
}

/// A CA created by `certs init`, for `simulate --tls-dir`.
pub(super) struct CertificateAuthority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// Opens the CA in the folder `dir`. `dir_flag` is the name of the command-line flag that sets
    /// the folder. Error messages contain this name.
    pub(super) fn open(dir: &Path, dir_flag: &str) -> Result<Self> {
        let issuer = read_issuer(dir, dir_flag)?;
        Ok(Self {
            dir: dir.to_owned(),
            issuer,
        })
    }

    /// Returns the path of the CA certificate.
    pub(super) fn certificate_path(&self) -> PathBuf {
        cert_and_key_paths(&self.dir, CA_FILE_STEM).0
    }

    /// Issues a certificate and a key for the client if they do not exist. Returns their paths.
    pub(super) fn ensure_client_certificate(
        &self,
        client: &ClientId,
    ) -> Result<(PathBuf, PathBuf)> {
        let (certificate, key) = cert_and_key_paths(&self.dir, client.as_str());
        if certificate.exists() && key.exists() {
            return Ok((certificate, key));
        }
        issue_client_certificate(
            &self.dir,
            &self.issuer,
            client,
            i64::from(DEFAULT_VALIDITY_DAYS),
        )
    }
}

fn issue_server_certificate(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    hosts: &[String],
    validity_days: i64,
) -> Result<()> {
    let mut params = certificate_params(&hosts[0], validity_days);
    params.subject_alt_names = CertificateParams::new(hosts.to_vec())
        .context("--host: not a host name or IP address; correct the value")?
        .subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    print_paths(&create_certificate(dir, SERVER_FILE_STEM, &params, issuer)?);
    Ok(())
}

/// Creates a private key and a certificate, and writes both to files. Returns their paths.
fn create_certificate(
    dir: &Path,
    file_stem: &str,
    params: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    let (certificate_file, key_file) = cert_and_key_paths(dir, file_stem);
    write_atomically(&key_file, &key.serialize_pem(), 0o600)?;
    write_atomically(&certificate_file, &certificate.pem(), 0o644)?;
    Ok((certificate_file, key_file))
}

fn print_paths((certificate, key): &(PathBuf, PathBuf)) {
    println!("{}", certificate.display());
    println!("{}", key.display());
}

fn certificate_params(common_name: &str, validity_days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name = distinguished_name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let now = time::OffsetDateTime::now_utc();
    params.not_after = now + time::Duration::days(validity_days);
    // The certificate is valid from one day before now. Otherwise a peer whose clock is behind
    // would reject a new certificate.
    params.not_before = now.min(params.not_after) - time::Duration::days(1);
    params
}

fn read_issuer(dir: &Path, dir_flag: &str) -> Result<Issuer<'static, KeyPair>> {
    let (certificate, key) = cert_and_key_paths(dir, CA_FILE_STEM);
    let read_pem = |file: &Path| {
        std::fs::read_to_string(file).with_context(|| {
            format!(
                "cannot read {}; create a CA with `cloud-connector certs init`, or pass its folder \
                 with {dir_flag}",
                file.display()
            )
        })
    };
    let (certificate_pem, key_pem) = (read_pem(&certificate)?, read_pem(&key)?);
    let key = KeyPair::from_pem(&key_pem)
        .with_context(|| format!("{} is not a private key", key.display()))?;
    Issuer::from_ca_cert_pem(&certificate_pem, key)
        .with_context(|| format!("{} is not a certificate", certificate.display()))
}

/// Returns the paths of a certificate and of its private key.
fn cert_and_key_paths(dir: &Path, file_stem: &str) -> (PathBuf, PathBuf) {
    (
        dir.join(format!("{file_stem}.pem")),
        dir.join(format!("{file_stem}.key")),
    )
}

/// Writes a temporary file and renames it. Therefore a broker that reloads its certificates never
/// reads an incomplete file.
fn write_atomically(file: &Path, text: &str, file_mode: u32) -> Result<()> {
    let temporary_file = PathBuf::from(format!("{}.new", file.display()));
    let write_and_rename = || -> std::io::Result<()> {
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(file_mode)
            .open(&temporary_file)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&temporary_file, file)
    };
    write_and_rename().with_context(|| {
        format!(
            "cannot write {}; choose another folder with --dir",
            file.display()
        )
    })
}

/// Converts a path to an absolute path, and returns a quoted TOML string.
fn toml_path(path: &Path) -> toml::Value {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    toml::Value::String(path.display().to_string())
}
