//! `certs`: a private authority and certificates that it signs.

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

use crate::domain::ClientId;

const CA: &str = "ca";
const SERVER: &str = "server";
const YEAR: u32 = 365;
/// A hundred years; the authority's ten times that are still a date.
const MAX_DAYS: i64 = 36_500;

#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    /// Make an authority and a server certificate for the embedded broker
    Init(InitArgs),
    /// Make a client's certificate, or another server certificate
    Issue(IssueArgs),
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Folder for the files; made if it is not there
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,
    /// Names and addresses by which clients reach the broker
    #[arg(long = "host", value_name = "NAME", default_values = ["localhost", "127.0.0.1"])]
    hosts: Vec<String>,
    /// Days until the server certificate expires (the authority's: ten times as many)
    #[arg(long, default_value_t = YEAR, value_parser = clap::value_parser!(u32).range(..=MAX_DAYS))]
    days: u32,
}

#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    /// The client's id: the certificate's common name
    #[arg(value_name = "CLIENT_ID", required_unless_present = "server")]
    client_id: Option<String>,
    /// Replace the server certificate instead, for these --host names
    #[arg(long, conflicts_with = "client_id")]
    server: bool,
    /// Names and addresses by which clients reach the broker (with --server)
    #[arg(long = "host", value_name = "NAME", default_values = ["localhost", "127.0.0.1"])]
    hosts: Vec<String>,
    /// Folder of the authority, and for the new files
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,
    /// Days until it expires
    #[arg(long, default_value_t = YEAR, value_parser = clap::value_parser!(u32).range(..=MAX_DAYS))]
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
    let (certificate, key) = files(&args.dir, CA);
    for file in [&certificate, &key] {
        if file.exists() {
            bail!(
                "{} exists; choose another folder with --dir, or make certificates with it: `cloud-connector certs issue`",
                file.display()
            );
        }
    }
    std::fs::create_dir_all(&args.dir).with_context(|| {
        format!(
            "cannot make {}; choose another folder with --dir",
            args.dir.display()
        )
    })?;
    let mut params = params(
        "Cloud Connector private authority",
        i64::from(args.days) * 10,
    );
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    let ca = params.self_signed(&ca_key)?;
    write(&key, &ca_key.serialize_pem(), 0o600)?;
    write(&certificate, &ca.pem(), 0o644)?;
    let issuer = read_issuer(&args.dir, "--dir")?;
    issue_server(&args.dir, &issuer, &args.hosts, i64::from(args.days))?;
    println!(
        "Keep {} to yourself: who has it can be any client.",
        key.display()
    );
    println!("For the configuration:");
    let (server, server_key) = files(&args.dir, SERVER);
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
    let Some(name) = &args.client_id else {
        return issue_server(&args.dir, &issuer, &args.hosts, days);
    };
    let client = ClientId::new(name)
        .map_err(|why| anyhow::anyhow!("{name:?} cannot be a client id: {why}"))?;
    tell(&issue_client(&args.dir, &issuer, &client, days)?);
    Ok(())
}

fn issue_client(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    client: &ClientId,
    days: i64,
) -> Result<(PathBuf, PathBuf)> {
    if matches!(client.as_str(), CA | SERVER | "." | "..") {
        bail!("{client:?} would replace a file of the authority; choose another client id");
    }
    let mut params = params(client.as_str(), days);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(dir, client.as_str(), &params, issuer)
}

/// A folder of `certs init`, for whoever needs certificates of many clients.
pub(super) struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Opens the folder that was named with `flag`.
    pub(super) fn open(dir: &Path, flag: &str) -> Result<Self> {
        let issuer = read_issuer(dir, flag)?;
        Ok(Self {
            dir: dir.to_owned(),
            issuer,
        })
    }

    /// The authority's own certificate.
    pub(super) fn certificate(&self) -> PathBuf {
        files(&self.dir, CA).0
    }

    /// A client's certificate and its key: those that are there, or new ones.
    pub(super) fn of_client(&self, client: &ClientId) -> Result<(PathBuf, PathBuf)> {
        let (certificate, key) = files(&self.dir, client.as_str());
        if certificate.exists() && key.exists() {
            return Ok((certificate, key));
        }
        issue_client(&self.dir, &self.issuer, client, i64::from(YEAR))
    }
}

fn issue_server(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    hosts: &[String],
    days: i64,
) -> Result<()> {
    let mut params = params(&hosts[0], days);
    params.subject_alt_names = CertificateParams::new(hosts.to_vec())
        .context("a --host is neither a name nor an address")?
        .subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    tell(&sign(dir, SERVER, &params, issuer)?);
    Ok(())
}

fn sign(
    dir: &Path,
    name: &str,
    params: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    let (certificate_file, key_file) = files(dir, name);
    write(&key_file, &key.serialize_pem(), 0o600)?;
    write(&certificate_file, &certificate.pem(), 0o644)?;
    Ok((certificate_file, key_file))
}

fn tell((certificate, key): &(PathBuf, PathBuf)) {
    println!("{}", certificate.display());
    println!("{}", key.display());
}

fn params(common_name: &str, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // A day back, for clocks that are a little behind.
    let now = time::OffsetDateTime::now_utc();
    params.not_after = now + time::Duration::days(days);
    params.not_before = now.min(params.not_after) - time::Duration::days(1);
    params
}

fn read_issuer(dir: &Path, flag: &str) -> Result<Issuer<'static, KeyPair>> {
    let (certificate, key) = files(dir, CA);
    let read = |file: &Path| {
        std::fs::read_to_string(file).with_context(|| {
            format!(
                "cannot read {}; make an authority first with `cloud-connector certs init`, or name its folder with {flag}",
                file.display()
            )
        })
    };
    let (certificate_text, key_text) = (read(&certificate)?, read(&key)?);
    let key = KeyPair::from_pem(&key_text)
        .with_context(|| format!("{} is not a private key", key.display()))?;
    Issuer::from_ca_cert_pem(&certificate_text, key)
        .with_context(|| format!("{} is not a certificate", certificate.display()))
}

fn files(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    (
        dir.join(format!("{name}.pem")),
        dir.join(format!("{name}.key")),
    )
}

/// Written beside and renamed: a broker that reads its files again never sees half of one.
fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let draft = PathBuf::from(format!("{}.new", file.display()));
    let write = || -> std::io::Result<()> {
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(mode)
            .open(&draft)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&draft, file)
    };
    write().with_context(|| {
        format!(
            "cannot write {}; choose another folder with --dir",
            file.display()
        )
    })
}

/// As a line of the configuration wants it: absolute and quoted.
fn toml_path(path: &Path) -> toml::Value {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    toml::Value::String(path.display().to_string())
}
