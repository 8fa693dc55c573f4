//! Tests of secured connections to external services: TLS and passwords for PostgreSQL and Kafka,
//! tokens for MQTT over WebSocket. Also a test of concurrent migrations.

use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use test_support::cluster::Cluster;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::services::{Service, create_database};
use test_support::{Certs, unique_id};

#[tokio::test]
async fn connector_connects_to_postgres_with_tls_disabled_required_and_verified() {
    let server = Service::start_postgres().await;
    let ca = server.file_path("ca.pem");
    let database = create_database(server.port).await;
    let cluster = Cluster::new()
        .await
        .set("postgres.port", server.port)
        .set("postgres.database", database)
        .set("postgres.host", "localhost");
    for (tls, ca) in [
        ("disable", None),
        ("require", None),
        ("verify-full", Some(&ca)),
    ] {
        let ca_setting = ca.map_or_else(String::new, |ca| ca.display().to_string());
        let (code, output) = run_migrate(&cluster, tls, &ca_setting).await;
        assert_eq!(code, Some(0), "{tls}: {output}");
    }
    // `postgres.ca` also accepts PEM text instead of a file path.
    let pem = std::fs::read_to_string(&ca).unwrap();
    let (code, output) = run_migrate(&cluster, "verify-full", &pem).await;
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = run_migrate(&cluster, "verify-full", "").await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("postgres.ca"), "{output}");
}

/// Runs the command `migrate` with these TLS settings. Returns the exit code and stderr.
async fn run_migrate(cluster: &Cluster, tls_mode: &str, ca: &str) -> (Option<i32>, String) {
    let result = cluster
        .connector_command()
        .arg("migrate")
        .env("CLOUD_CONNECTOR__POSTGRES__TLS", tls_mode)
        .env("CLOUD_CONNECTOR__POSTGRES__CA", ca)
        .output()
        .await
        .unwrap();
    (
        result.status.code(),
        String::from_utf8(result.stderr).unwrap(),
    )
}

#[tokio::test]
async fn concurrent_migrate_commands_all_succeed() {
    let server = Service::start_postgres().await;
    let database = create_database(server.port).await;
    let cluster = Cluster::new()
        .await
        .set("postgres.port", server.port)
        .set("postgres.database", database);
    let migrations = (0..6).map(|_| cluster.run_command(&["migrate"]));
    for (code, output) in futures::future::join_all(migrations).await {
        assert_eq!(code, Some(0), "{output}");
    }
}

#[tokio::test]
async fn connector_connects_to_kafka_with_sasl_plain_and_scram() {
    let (kafka, port) = Service::start_kafka_with_sasl().await;
    let cluster = Cluster::with_services(Service::start_mosquitto().await, None, Some(kafka)).await;
    let mut cluster = cluster
        .set("kafka.brokers", format!("127.0.0.1:{port}"))
        .set("kafka.security", "sasl_plaintext")
        .set("kafka.username", "cc");
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        cluster = cluster
            .set("kafka.sasl_mechanism", mechanism)
            .set("kafka.password", "cc-secret");
        let process = cluster.start(&[]).await;
        let client_id = unique_id("sasl");
        let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
        let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        process.wait_until_connected(&client_id).await;
        cluster = cluster.set("kafka.password", "wrong-wrong");
        let (code, output) = cluster.run_command(&["doctor"]).await;
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains("kafka.password"), "{output}");
    }
}

#[tokio::test]
async fn connector_connects_to_kafka_over_tls_only_with_the_right_ca() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let (kafka, port) = Service::start_kafka_with_tls(&certs.file_path("")).await;
    let cluster = Cluster::with_services(Service::start_mosquitto().await, None, Some(kafka)).await;
    let cluster = cluster
        .set("kafka.brokers", format!("localhost:{port}"))
        .set("kafka.security", "sasl_ssl")
        .set("kafka.username", "cc")
        .set("kafka.password", "cc-secret")
        .set("kafka.ca", certs.file_path("ca.pem").display());
    let process = cluster.start(&[]).await;
    let client_id = unique_id("tls");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    process.wait_until_connected(&client_id).await;
    let other_dir = tempfile::tempdir().unwrap();
    let other_certs = Certs::init(other_dir.path()).await;
    let cluster = cluster.set("kafka.ca", other_certs.file_path("ca.pem").display());
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains("FAIL  Kafka") && output.contains("kafka.ca"),
        "{output}"
    );
}

/// Accepts one connection and rejects the WebSocket upgrade. Returns the head of the HTTP request.
async fn reject_first_request(listener: TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
    String::from_utf8(head).unwrap()
}

/// Sets the configuration key to the path of `token_or_key_file` and runs `doctor`. Returns the
/// token that `doctor` sends to the broker.
async fn read_sent_token(config_key: &str, token_or_key_file: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/mqtt", listener.local_addr().unwrap());
    let request = tokio::spawn(reject_first_request(listener));
    let cluster = Cluster::new()
        .await
        .set("mqtt.url", url)
        .set(config_key, token_or_key_file.display());
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(1), "{output}");
    let head = request.await.unwrap().to_lowercase();
    let token_header = head
        .lines()
        .find(|line| line.starts_with("x-akamai-dcp-token:"));
    let token_header = token_header.unwrap_or_else(|| panic!("no token in {head}"));
    token_header.split_once(':').unwrap().1.trim().to_owned()
}

#[tokio::test]
async fn websocket_request_contains_the_token_from_the_file_or_a_signed_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "token-from-file\n").unwrap();
    assert_eq!(
        read_sent_token("mqtt.token_file", &file).await,
        "token-from-file"
    );

    let key = folder.path().join("key.pem");
    let openssl = tokio::process::Command::new("openssl")
        .args([
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
            "-out",
        ])
        .arg(&key)
        .output()
        .await
        .unwrap();
    assert!(openssl.status.success());
    let token = read_sent_token("mqtt.token_key", &key).await;
    assert_eq!(token.split('.').count(), 3, "{token}");
}

#[tokio::test]
async fn signed_token_contains_the_client_id_and_a_valid_signature() {
    use base64::Engine as _;
    let decode_json = |part: &str| {
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part);
        serde_json::from_slice::<Value>(&bytes.unwrap()).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key.pem");
    let openssl = |args: &[&str]| {
        let result = std::process::Command::new("openssl")
            .args(args)
            .output()
            .unwrap();
        assert!(
            result.status.success(),
            "{}",
            String::from_utf8_lossy(&result.stderr)
        );
    };
    let key_file = key.to_str().unwrap();
    openssl(&[
        "genpkey",
        "-algorithm",
        "RSA",
        "-pkeyopt",
        "rsa_keygen_bits:2048",
        "-out",
        key_file,
    ]);
    let source = mqtt::TokenSource::Signed {
        key_file: key.clone(),
        client_id: "my-connector".into(),
        ttl: std::time::Duration::from_mins(5),
    };
    let token = source.token().unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    assert_eq!(decode_json(parts[0])["alg"], "RS256");
    assert_eq!(decode_json(parts[0])["kid"], "rhcloud-connector");
    let claims = decode_json(parts[1]);
    assert_eq!(claims["client-id"], "my-connector");
    assert_eq!(claims["auth-group"], "admin");
    let remaining_seconds = claims["exp"].as_i64().unwrap() - jiff::Timestamp::now().as_second();
    assert!(
        (290..=300).contains(&remaining_seconds),
        "{remaining_seconds}"
    );
    // Verify the signature with OpenSSL.
    let (public_key_file, signed_file, signature_file) = (
        folder.path().join("public.pem"),
        folder.path().join("signed"),
        folder.path().join("signature"),
    );
    let signature = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(parts[2])
        .unwrap();
    std::fs::write(&signature_file, signature).unwrap();
    std::fs::write(&signed_file, format!("{}.{}", parts[0], parts[1])).unwrap();
    openssl(&[
        "pkey",
        "-in",
        key_file,
        "-pubout",
        "-out",
        public_key_file.to_str().unwrap(),
    ]);
    openssl(&[
        "dgst",
        "-sha256",
        "-verify",
        public_key_file.to_str().unwrap(),
        "-signature",
        signature_file.to_str().unwrap(),
        signed_file.to_str().unwrap(),
    ]);
}
