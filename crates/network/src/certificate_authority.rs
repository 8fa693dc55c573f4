//! A private certificate authority (CA) in a folder, which issues server and client certificates.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

/// File name stem of the CA certificate and key.
const CA_FILE_STEM: &str = "ca";
/// File name stem of the server certificate and key.
const SERVER_FILE_STEM: &str = "server";
/// A CA is valid this many times longer than its server certificate.
const CA_VALIDITY_FACTOR: i64 = 10;

/// The CA cannot be created or opened, or a certificate cannot be issued. Each error text contains
/// the fix.
#[derive(Debug, thiserror::Error)]
pub enum CertificateAuthorityError {
    /// The folder already contains a CA.
    #[error(
        "{} exists; choose another folder with --dir, or issue certificates with this CA: \
         `cloud-connector certs issue`",
        .0.display()
    )]
    Exists(PathBuf),
    /// The folder cannot be created.
    #[error("cannot create {}: {problem}; choose another folder with --dir", dir.display())]
    CreateDir {
        /// Path of the folder.
        dir: PathBuf,
        /// Error of the operating system.
        problem: std::io::Error,
    },
    /// A file of the CA cannot be read.
    #[error(
        "cannot read {}: {problem}; create a CA with `cloud-connector certs init`, or pass its \
         folder with {dir_flag}",
        file.display()
    )]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Command-line flag that sets the folder.
        dir_flag: String,
        /// Error of the operating system.
        problem: std::io::Error,
    },
    /// A file of the CA has the wrong content.
    #[error("{} is not {expected}: {problem}", file.display())]
    Content {
        /// Path of the file.
        file: PathBuf,
        /// What the file should contain.
        expected: &'static str,
        /// Error of the parser.
        problem: rcgen::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {problem}; choose another folder with --dir", file.display())]
    Write {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        problem: std::io::Error,
    },
    /// The client id is the name of a file of the CA.
    #[error("client id {0:?} is reserved for files of the CA; choose another client id")]
    ReservedClientId(String),
    /// A host name of the server certificate is invalid.
    #[error("--host: not a host name or IP address: {0}; correct the value")]
    InvalidHost(rcgen::Error),
    /// A certificate or key cannot be generated.
    #[error("cannot create the certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

type Result<T> = std::result::Result<T, CertificateAuthorityError>;

/// Paths of a certificate and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Path of the certificate.
    pub certificate: PathBuf,
    /// Path of the private key.
    pub key: PathBuf,
}

impl CertificateFiles {
    fn new(dir: &Path, file_stem: &str) -> Self {
        Self {
            certificate: dir.join(format!("{file_stem}.pem")),
            key: dir.join(format!("{file_stem}.key")),
        }
    }
}

/// A private CA, with which this process issues certificates.
pub struct CertificateAuthority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// Creates a CA in the folder `dir`. Creates the folder if it does not exist. The CA is valid
    /// ten times longer than its server certificate.
    ///
    /// # Errors
    /// When the folder contains a CA or cannot be written.
    pub fn create(dir: &Path, server_validity_days: u32) -> Result<Self> {
        let files = CertificateFiles::new(dir, CA_FILE_STEM);
        for file in [&files.certificate, &files.key] {
            if file.exists() {
                return Err(CertificateAuthorityError::Exists(file.clone()));
            }
        }
        std::fs::create_dir_all(dir).map_err(|problem| CertificateAuthorityError::CreateDir {
            dir: dir.to_owned(),
            problem,
        })?;
        let ca_validity_days = i64::from(server_validity_days) * CA_VALIDITY_FACTOR;
        let mut params = certificate_params("Cloud Connector private CA", ca_validity_days);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write_atomically(&files.key, &key.serialize_pem(), 0o600)?;
        write_atomically(&files.certificate, &certificate.pem(), 0o644)?;
        Self::open(dir, "--dir")
    }

    /// Opens the CA in the folder `dir`. `dir_flag` is the name of the command-line flag that sets
    /// the folder. Error messages contain this name.
    ///
    /// # Errors
    /// When the folder contains no CA, or its files are invalid.
    pub fn open(dir: &Path, dir_flag: &str) -> Result<Self> {
        let files = CertificateFiles::new(dir, CA_FILE_STEM);
        let read_pem = |file: &Path| {
            std::fs::read_to_string(file).map_err(|problem| CertificateAuthorityError::Read {
                file: file.to_owned(),
                dir_flag: dir_flag.to_owned(),
                problem,
            })
        };
        let (certificate_pem, key_pem) = (read_pem(&files.certificate)?, read_pem(&files.key)?);
        let content_error = |file: &Path, expected, problem| CertificateAuthorityError::Content {
            file: file.to_owned(),
            expected,
            problem,
        };
        let key = KeyPair::from_pem(&key_pem)
            .map_err(|error| content_error(&files.key, "a private key", error))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)
            .map_err(|error| content_error(&files.certificate, "a certificate", error))?;
        Ok(Self {
            dir: dir.to_owned(),
            issuer,
        })
    }

    /// Returns the paths of the CA certificate and its private key.
    #[must_use]
    pub fn files(&self) -> CertificateFiles {
        CertificateFiles::new(&self.dir, CA_FILE_STEM)
    }

    /// Issues the server certificate for these host names and IP addresses. Replaces an existing
    /// server certificate.
    ///
    /// # Errors
    /// When a host is invalid, or a file cannot be written.
    pub fn issue_server_certificate(
        &self,
        hosts: &[String],
        validity_days: u32,
    ) -> Result<CertificateFiles> {
        let common_name = hosts.first().map_or("", String::as_str);
        let mut params = certificate_params(common_name, i64::from(validity_days));
        params.subject_alt_names = CertificateParams::new(hosts.to_vec())
            .map_err(CertificateAuthorityError::InvalidHost)?
            .subject_alt_names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(SERVER_FILE_STEM, &params)
    }

    /// Issues a certificate with the client id as the common name.
    ///
    /// # Errors
    /// When the client id is reserved, or a file cannot be written.
    pub fn issue_client_certificate(
        &self,
        client_id: &str,
        validity_days: u32,
    ) -> Result<CertificateFiles> {
        if matches!(client_id, CA_FILE_STEM | SERVER_FILE_STEM | "." | "..") {
            return Err(CertificateAuthorityError::ReservedClientId(
                client_id.to_owned(),
            ));
        }
        let mut params = certificate_params(client_id, i64::from(validity_days));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(client_id, &params)
    }

    /// Issues a certificate and a key for the client if they do not exist. Returns their paths.
    ///
    /// # Errors
    /// Like [`CertificateAuthority::issue_client_certificate`].
    pub fn ensure_client_certificate(
        &self,
        client_id: &str,
        validity_days: u32,
    ) -> Result<CertificateFiles> {
        let files = CertificateFiles::new(&self.dir, client_id);
        if files.certificate.exists() && files.key.exists() {
            return Ok(files);
        }
        self.issue_client_certificate(client_id, validity_days)
    }

    /// Creates a private key and a certificate, and writes both to files.
    fn issue(&self, file_stem: &str, params: &CertificateParams) -> Result<CertificateFiles> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let files = CertificateFiles::new(&self.dir, file_stem);
        write_atomically(&files.key, &key.serialize_pem(), 0o600)?;
        write_atomically(&files.certificate, &certificate.pem(), 0o644)?;
        Ok(files)
    }
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
    write_and_rename().map_err(|problem| CertificateAuthorityError::Write {
        file: file.to_owned(),
        problem,
    })
}
