//! Certificates for tests, issued by the command `cloud-connector certs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::connector::ConnectorBuilder;
use super::connector_command;

/// A directory with a private CA, a server certificate and client certificates.
pub struct Certs {
    dir: PathBuf,
}

impl Certs {
    /// Creates the CA and the server certificate in the directory `certs` below `parent_dir`.
    pub async fn init(parent_dir: &Path) -> Self {
        let dir = parent_dir.join("certs");
        run_certs_command(&["init", "--dir", dir.to_str().unwrap()]).await;
        Self { dir }
    }

    /// Creates certificates and the builder of a connector. The connector's MQTT listener uses the
    /// certificates.
    pub async fn connector_builder() -> (Self, ConnectorBuilder) {
        let builder = ConnectorBuilder::new();
        let certs = Self::init(builder.temp_dir()).await;
        let settings = certs.broker_settings();
        let builder = settings
            .iter()
            .fold(builder, |builder, (key, value)| builder.set(key, value));
        (certs, builder)
    }

    /// Returns the settings of an MQTT listener of the embedded broker that uses the certificates.
    pub fn broker_settings(&self) -> [(&'static str, String); 4] {
        let path_string = |file_name: &str| self.file_path(file_name).display().to_string();
        [
            ("broker.tls.listen", "127.0.0.1:0".to_owned()),
            ("broker.tls.certificate", path_string("server.pem")),
            ("broker.tls.key", path_string("server.key")),
            ("broker.tls.client_ca", path_string("ca.pem")),
        ]
    }

    /// Issues a client certificate. Writes the files `<client_id>.pem` and `<client_id>.key`.
    pub async fn issue_client_certificate(&self, client_id: &str) {
        run_certs_command(&["issue", "--dir", self.dir.to_str().unwrap(), client_id]).await;
    }

    /// Returns the path of a file in the certificate directory.
    pub fn file_path(&self, file_name: &str) -> PathBuf {
        self.dir.join(file_name)
    }

    /// Writes a CRL that revokes the client's certificate. Returns the path of the CRL file.
    pub fn revoke_client_certificate(&self, client_id: &str) -> PathBuf {
        let read_file =
            |file_name: &str| std::fs::read_to_string(self.file_path(file_name)).unwrap();
        let ca_key = rcgen::KeyPair::from_pem(&read_file("ca.key")).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&read_file("ca.pem"), ca_key).unwrap();
        let certificate_der =
            &read_pem_certificates(&self.file_path(&format!("{client_id}.pem")))[0];
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate_der).unwrap();
        let now = time::OffsetDateTime::now_utc();
        let crl = rcgen::CertificateRevocationListParams {
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
        let crl_file = self.file_path("revoked.pem");
        std::fs::write(&crl_file, crl.signed_by(&issuer).unwrap().pem().unwrap()).unwrap();
        crl_file
    }

    /// Returns the TLS settings of a client that trusts the CA. If `client_id` is `None`, the
    /// client presents no certificate.
    pub fn client_tls_config(&self, client_id: Option<&str>) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        for root in read_pem_certificates(&self.file_path("ca.pem")) {
            roots.add(root).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match client_id {
            None => builder.with_no_client_auth(),
            Some(client_id) => {
                let chain = read_pem_certificates(&self.file_path(&format!("{client_id}.pem")));
                let key = PrivateKeyDer::from_pem_file(self.file_path(&format!("{client_id}.key")));
                builder.with_client_auth_cert(chain, key.unwrap()).unwrap()
            }
        })
    }
}

fn read_pem_certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file)
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

async fn run_certs_command(args: &[&str]) {
    let output = connector_command()
        .arg("certs")
        .args(args)
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
