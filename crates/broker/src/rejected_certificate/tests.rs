//! Tests of rejected certificates with a running broker and TLS clients.

use std::path::Path;

use network::tls_server::ServerTls;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType,
    IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::*;
use crate::router_shards::tests::RunningBroker;
use crate::session::tests::{TestSink, tls_settings};
use crate::{BrokerTlsSettings, accept, read_tls};
use domain::BrokerRejection;

const FAR_FUTURE: i32 = 2100;
const PAST: i32 = 2020;

struct Ca {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

struct ClientCertificate {
    certificate: Certificate,
    key: KeyPair,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = params("ca", FAR_FUTURE);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            certificate: params.self_signed(&key).unwrap(),
            issuer: Issuer::new(params, key),
        }
    }

    fn issue(&self, name: &str, serial_number: u64, last_year: i32) -> ClientCertificate {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, last_year);
        params.serial_number = Some(SerialNumber::from(serial_number));
        ClientCertificate {
            certificate: params.signed_by(&key, &self.issuer).unwrap(),
            key,
        }
    }

    fn crl_pem(&self, serial_number: u64) -> String {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(FAR_FUTURE, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(serial_number),
                revocation_time: date_time_ymd(2021, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// Returns a certificate that is valid from 2019 until the start of `last_year`.
fn params(name: &str, last_year: i32) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2019, 1, 1);
    params.not_after = date_time_ymd(last_year, 1, 1);
    params
}

fn broker_tls(dir: &Path, ca: &Ca, revoked_serial_number: u64) -> Arc<ServerTls> {
    let server = ca.issue("server", 1, FAR_FUTURE);
    let write = |file_name: &str, text: String| {
        let file = dir.join(file_name);
        std::fs::write(&file, text).unwrap();
        Some(file)
    };
    let settings = BrokerTlsSettings {
        certificate: write("server.pem", server.certificate.pem()),
        key: write("server.key", server.key.serialize_pem()),
        client_ca: write("ca.pem", ca.certificate.pem()),
        crl: write("crl.pem", ca.crl_pem(revoked_serial_number)),
        ..tls_settings()
    };
    Arc::new(read_tls(&settings).unwrap())
}

/// Presents a certificate, and waits until the broker has closed the connection.
async fn present(address: std::net::SocketAddr, ca: &Ca, client: &ClientCertificate) {
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(client.key.serialize_der()).unwrap();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![client.certificate.der().clone()], key)
        .unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let server_name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(server_name, stream).await.unwrap();
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}

#[tokio::test]
async fn expired_and_revoked_certificates_of_the_client_ca_are_recent_rejections_of_their_name() {
    let (ca, other_ca) = (Ca::new(), Ca::new());
    let dir = tempfile::tempdir().unwrap();
    let tls = broker_tls(dir.path(), &ca, 3);
    let running = RunningBroker::start_with_sink(TestSink::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = running.tasks.clone();
    let accept =
        accept::accept_connections(running.broker.state.clone(), listener, Some(tls), tasks);
    running.tasks.spawn_essential("accept_tls", accept);
    present(address, &ca, &other_ca.issue("other", 2, PAST)).await;
    for (name, serial_number, last_year) in [
        ("revoked", 3, FAR_FUTURE),
        ("revoked-and-expired", 3, PAST),
        ("expired", 4, PAST),
    ] {
        let client = ca.issue(name, serial_number, last_year);
        present(address, &ca, &client).await;
        let rejections = wait_for_rejections(&running, name).await;
        assert_eq!(rejections.len(), 1, "{name}");
        assert_eq!(rejections[0].reason, "tls_handshake_failed");
    }
    assert_eq!(running.broker.recent_rejections("other"), []);
    running.tasks.cancel();
}

async fn wait_for_rejections(running: &RunningBroker, name: &str) -> Vec<BrokerRejection> {
    let wait = async {
        loop {
            let rejections = running.broker.recent_rejections(name);
            if !rejections.is_empty() {
                return rejections;
            }
            tokio::task::yield_now().await;
        }
    };
    let rejections = tokio::time::timeout(Duration::from_secs(20), wait).await;
    rejections.expect("the rejection is not stored")
}
