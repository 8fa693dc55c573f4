//! What a person can get wrong: one clear line that names the key and the cure, an exit code that
//! is not 0, and nothing half-written.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::support::{Certs, Connector, program};

/// Runs the connector, which must fail, and returns its one line.
async fn fails(data: &Path, more: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = program();
    command
        .args(["run", "--data-dir"])
        .arg(data)
        .args(more)
        .env("CLOUD_CONNECTOR__HTTP__LISTEN", "127.0.0.1:0")
        .env("CLOUD_CONNECTOR__BROKER__LISTEN", "127.0.0.1:0")
        .envs(variables.iter().copied());
    let done = tokio::time::timeout(Duration::from_secs(30), command.output());
    let done = done.await.expect("it runs on").unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(done.stdout.is_empty(), "it greeted before it failed");
    said
}

#[tokio::test]
async fn a_wrong_configuration_value() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let said = fails(
        &data,
        &[],
        &[("CLOUD_CONNECTOR__RECORD__MAX_BATCH_SIZE", "lots")],
    )
    .await;
    assert!(said.contains("record.max_batch_size"), "{said}");
    assert!(
        said.contains("CLOUD_CONNECTOR__RECORD__MAX_BATCH_SIZE"),
        "{said}"
    );
    assert!(said.contains("the default is 1000"), "{said}");
    let said = fails(&data, &["--http", "nowhere"], &[]).await;
    assert!(
        said.contains("http.listen") && said.contains("--http"),
        "{said}"
    );
    let said = fails(&data, &["--config", "/does/not/exist.toml"], &[]).await;
    assert!(
        said.contains("/does/not/exist.toml") && said.contains("--config"),
        "{said}"
    );
    let said = fails(&data, &[], &[("CLOUD_CONNECTOR__LOG__LEVEL", "loud")]).await;
    assert!(
        said.contains("log.level") && said.contains("debug"),
        "{said}"
    );
    let said = fails(
        &data,
        &[],
        &[("CLOUD_CONNECTOR__TENANT__STATIC_FILE", "/no/map.json")],
    )
    .await;
    assert!(said.contains("tenant.static_file"), "{said}");
    assert!(!data.exists(), "something was written");
}

#[tokio::test]
async fn an_unwritable_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    // A file where the folder should be is in everybody's way, root included.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let said = fails(&file.join("data"), &[], &[]).await;
    assert!(
        said.contains("data.dir") && said.contains("--data-dir"),
        "{said}"
    );
    assert!(said.contains("Not a directory"), "{said}");

    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    if std::fs::write(closed.join("probe"), "").is_err() {
        let said = fails(&closed, &[], &[]).await;
        assert!(
            said.contains("data.dir") && said.contains("denied"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_port_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, key) in [("--http", "http.listen"), ("--mqtt", "broker.listen")] {
        let said = fails(&data, &[flag, &address], &[]).await;
        assert!(said.contains(key) && said.contains(&address), "{said}");
        assert!(said.contains("Address already in use"), "{said}");
        assert!(said.contains("choose another"), "{said}");
    }
    assert!(!data.exists(), "something was written");
}

#[tokio::test]
async fn a_damaged_database_file() {
    for damage in [
        |bytes: &mut Vec<u8>| bytes[..100].fill(0x55),
        |bytes: &mut Vec<u8>| {
            // The first page still says what it is; the rest is noise.
            for (at, byte) in bytes.iter_mut().enumerate().skip(4096) {
                *byte = u8::try_from(at % 251).unwrap();
            }
        },
        |bytes: &mut Vec<u8>| bytes.truncate(5000),
    ] {
        let mut connector = Connector::start().await;
        connector.signal("TERM");
        assert!(connector.ended().await.success());
        let database = connector.data_dir().join("cloud-connector.db");
        let mut bytes = std::fs::read(&database).unwrap();
        damage(&mut bytes);
        std::fs::write(&database, &bytes).unwrap();
        let said = fails(&connector.data_dir(), &[], &[]).await;
        assert!(
            said.contains("cloud-connector.db") && said.contains("damaged"),
            "{said}"
        );
        assert!(said.contains("restore it"), "{said}");
        assert_eq!(
            std::fs::read(&database).unwrap(),
            bytes,
            "it was written to"
        );
    }
}

#[tokio::test]
async fn an_expired_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let certs = Certs::init(folder.path()).await;
    let days = ["certs", "issue", "--server", "--days", "0", "--dir"];
    let done = program()
        .args(days)
        .arg(certs.file(""))
        .output()
        .await
        .unwrap();
    assert!(done.status.success());
    let file = |name: &str| certs.file(name).display().to_string();
    let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let tls = [
        ("CLOUD_CONNECTOR__BROKER__TLS__LISTEN", "127.0.0.1:0"),
        (
            "CLOUD_CONNECTOR__BROKER__TLS__CERTIFICATE",
            certificate.as_str(),
        ),
        ("CLOUD_CONNECTOR__BROKER__TLS__KEY", key.as_str()),
        ("CLOUD_CONNECTOR__BROKER__TLS__CLIENT_CA", ca.as_str()),
    ];
    let said = fails(&data, &[], &tls).await;
    assert!(
        said.contains("broker.tls.certificate") && said.contains("expired on"),
        "{said}"
    );
    assert!(said.contains("certs issue --server"), "{said}");

    // A key that is not the certificate's, and files that are none.
    let mut wrong = tls;
    let done = program()
        .args(["certs", "issue", "--server", "--dir"])
        .arg(certs.file(""))
        .output();
    assert!(done.await.unwrap().status.success());
    let ca_key = file("ca.key");
    wrong[2].1 = &ca_key;
    let said = fails(&data, &[], &wrong).await;
    assert!(said.contains("broker.tls.key"), "{said}");
    let mut wrong = tls;
    wrong[3].1 = &ca_key;
    let said = fails(&data, &[], &wrong).await;
    assert!(said.contains("broker.tls.client_ca"), "{said}");
    assert!(!data.exists(), "something was written");
}

#[tokio::test]
async fn doctor_names_each_broken_part_with_its_cure() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let doctor = |variables: Vec<(&'static str, String)>| {
        let mut command = program();
        command
            .args([
                "doctor",
                "--http",
                "127.0.0.1:0",
                "--mqtt",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(&data)
            .envs(variables);
        async move {
            let done = command.output().await.unwrap();
            (done.status.code(), String::from_utf8(done.stdout).unwrap())
        }
    };
    let (code, said) = doctor(vec![]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(!data.exists(), "looking made something");
    for part in [
        "data folder",
        "database",
        "broker",
        "tenant lookup",
        "translator",
        "certificates",
    ] {
        assert!(
            said.lines()
                .any(|line| line.starts_with("ok") && line.contains(part)),
            "{said}"
        );
    }
    let (code, said) = doctor(vec![("CLOUD_CONNECTOR__TENANT__STATIC_FILE", "/no".into())]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("FAIL  tenant lookup"), "{said}");
    let address = "CLOUD_CONNECTOR__TENANT__TRANSLATOR_URL";
    let (code, said) = doctor(vec![(address, "http://127.0.0.1:1".into())]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("FAIL  translator"), "{said}");
    assert!(said.contains("tenant.translator_url"), "{said}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let route = axum::routing::post(async || "{}");
    let router = axum::Router::new().route("/internal/orgIds", route);
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let (code, said) = doctor(vec![(address, url)]).await;
    assert_eq!(code, Some(0), "{said}");
    serving.abort();
    let file = "CLOUD_CONNECTOR__TENANT__TRANSLATOR_FILE";
    let (code, said) = doctor(vec![(file, "/no".into())]).await;
    assert_eq!(code, Some(1));
    assert!(
        said.contains("tenant.translator_file: cannot read /no"),
        "{said}"
    );

    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("cloud-connector.db"), [0x55; 8192]).unwrap();
    let (code, said) = doctor(vec![]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("FAIL  database"), "{said}");
    let (code, said) = doctor(vec![("CLOUD_CONNECTOR__HTTP__LISTN", "x".into())]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("did you mean http.listen?"), "{said}");
}

#[tokio::test]
async fn doctor_is_content_while_the_connector_runs() {
    let connector = Connector::start().await;
    let done = program()
        .args(["doctor", "--data-dir"])
        .arg(connector.data_dir())
        .args([
            "--http",
            connector.http.trim_start_matches("http://"),
            "--mqtt",
            &connector.mqtt,
        ])
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains("a connector runs here"), "{said}");
}
