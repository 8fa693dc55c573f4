//! Certificates made by the program's own command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::connector::Setup;
use super::program;

pub struct Certs {
    dir: PathBuf,
}

impl Certs {
    pub async fn init(dir: &Path) -> Self {
        let dir = dir.join("certs");
        run(&["init", "--dir", dir.to_str().unwrap()]).await;
        Self { dir }
    }

    /// A connector's setup that uses them.
    pub async fn setup() -> (Self, Setup) {
        let setup = Setup::new();
        let certs = Self::init(setup.folder()).await;
        let file = |name: &str| certs.file(name).display().to_string();
        let setup = setup
            .set("broker.tls.listen", "127.0.0.1:0")
            .set("broker.tls.certificate", file("server.pem"))
            .set("broker.tls.key", file("server.key"))
            .set("broker.tls.client_ca", file("ca.pem"));
        (certs, setup)
    }

    pub async fn issue(&self, client: &str) {
        run(&["issue", "--dir", self.dir.to_str().unwrap(), client]).await;
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A list by the authority that revokes this client's certificate.
    pub fn revoke(&self, client: &str) -> PathBuf {
        let read = |name: &str| std::fs::read_to_string(self.file(name)).unwrap();
        let key = rcgen::KeyPair::from_pem(&read("ca.key")).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), key).unwrap();
        let der = &pem_certificates(&self.file(&format!("{client}.pem")))[0];
        let (_, certificate) = x509_parser::parse_x509_certificate(der).unwrap();
        let now = time::OffsetDateTime::now_utc();
        let list = rcgen::CertificateRevocationListParams {
            this_update: now - time::Duration::days(1),
            next_update: now + time::Duration::days(1),
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![rcgen::RevokedCertParams {
                serial_number: rcgen::SerialNumber::from_slice(certificate.raw_serial()),
                revocation_time: now - time::Duration::hours(1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let file = self.file("revoked.pem");
        std::fs::write(&file, list.signed_by(&issuer).unwrap().pem().unwrap()).unwrap();
        file
    }

    /// A TLS client that shows this client's certificate, or none.
    pub fn client_config(&self, client: Option<&str>) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        for root in pem_certificates(&self.file("ca.pem")) {
            roots.add(root).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let chain = pem_certificates(&self.file(&format!("{client}.pem")));
                let key = PrivateKeyDer::from_pem_file(self.file(&format!("{client}.key")));
                builder.with_client_auth_cert(chain, key.unwrap()).unwrap()
            }
        })
    }
}

fn pem_certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file)
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

async fn run(args: &[&str]) {
    let done = program().arg("certs").args(args).output().await.unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}
