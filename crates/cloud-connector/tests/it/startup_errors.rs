//! Tests of configuration and environment errors. `run` prints one line with the setting and the
//! fix, exits with code 1 and writes no files. `doctor` reports the same problems.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::net::TcpListener;

use test_support::{Certs, Connector, connector_command};

/// Runs the connector, which must fail with one line on standard error. Returns the line.
async fn startup_error(data_dir: &Path, args: &[&str], env_vars: &[(&str, &str)]) -> String {
    let mut command = connector_command();
    command
        .args(["run", "--data-dir"])
        .arg(data_dir)
        .args(args)
        .env("CLOUD_CONNECTOR__HTTP__LISTEN", "127.0.0.1:0")
        .env("CLOUD_CONNECTOR__BROKER__LISTEN", "127.0.0.1:0")
        .envs(env_vars.iter().copied());
    let output = tokio::time::timeout(Duration::from_secs(30), command.output());
    let output = output
        .await
        .expect("the connector started instead of failing")
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(
        output.stdout.is_empty(),
        "the startup banner was printed before the error"
    );
    stderr
}

#[tokio::test]
async fn invalid_configuration_value_is_reported_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let error = startup_error(
        &data_dir,
        &[],
        &[("CLOUD_CONNECTOR__RECORD__MAX_BATCH_SIZE", "lots")],
    )
    .await;
    assert!(error.contains("record.max_batch_size"), "{error}");
    assert!(
        error.contains("CLOUD_CONNECTOR__RECORD__MAX_BATCH_SIZE"),
        "{error}"
    );
    assert!(error.contains("the default is 1000"), "{error}");
    let error = startup_error(&data_dir, &["--http", "nowhere"], &[]).await;
    assert!(
        error.contains("http.listen") && error.contains("--http"),
        "{error}"
    );
    let error = startup_error(&data_dir, &["--config", "/does/not/exist.toml"], &[]).await;
    assert!(
        error.contains("/does/not/exist.toml") && error.contains("--config"),
        "{error}"
    );
    let error = startup_error(&data_dir, &[], &[("CLOUD_CONNECTOR__LOG__LEVEL", "loud")]).await;
    assert!(
        error.contains("log.level") && error.contains("debug"),
        "{error}"
    );
    let error = startup_error(
        &data_dir,
        &[],
        &[("CLOUD_CONNECTOR__TENANT__STATIC_FILE", "/no/map.json")],
    )
    .await;
    assert!(error.contains("tenant.static_file"), "{error}");
    assert!(!data_dir.exists(), "the data folder was created");
}

#[tokio::test]
async fn invalid_broker_settings_are_reported_with_their_fix() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    for (name, value, expected) in [
        (
            "CLOUD_CONNECTOR__BROKER__MAX_PACKET_SIZE",
            "2097151",
            ["broker.max_packet_size", "http.max_body_bytes", "2097152"],
        ),
        (
            "CLOUD_CONNECTOR__HTTP__MAX_BODY_BYTES",
            "2200000",
            ["broker.max_packet_size", "http.max_body_bytes", "4400000"],
        ),
        (
            "CLOUD_CONNECTOR__BROKER__WEBSOCKET__LISTEN",
            "0.0.0.0:0",
            ["broker.websocket.listen", "loopback", "broker.tls.listen"],
        ),
        (
            "CLOUD_CONNECTOR__BROKER__WEBSOCKET__PATH",
            "mqtt",
            ["broker.websocket.path", "slash", "/mqtt"],
        ),
        (
            "CLOUD_CONNECTOR__BROKER__TLS__WEBSOCKET_LISTEN",
            "127.0.0.1:0",
            ["broker.tls.certificate", "PEM", "certs init"],
        ),
    ] {
        let error = startup_error(&data_dir, &[], &[(name, value)]).await;
        for text in expected {
            assert!(error.contains(text), "{name}={value}: {error}");
        }
    }
    assert!(!data_dir.exists(), "the data folder was created");
}

#[tokio::test]
async fn unwritable_data_folder_is_reported_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    // The parent of the data folder is a file. Not even root can create a folder in a file.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = startup_error(&file.join("data"), &[], &[]).await;
    assert!(
        error.contains("data.dir") && error.contains("--data-dir"),
        "{error}"
    );
    assert!(error.contains("Not a directory"), "{error}");

    let read_only_dir = folder.path().join("read-only");
    std::fs::create_dir(&read_only_dir).unwrap();
    std::fs::set_permissions(&read_only_dir, std::fs::Permissions::from_mode(0o555)).unwrap();
    let is_root = std::fs::write(read_only_dir.join("probe"), "").is_ok();
    if !is_root {
        let error = startup_error(&read_only_dir, &[], &[]).await;
        assert!(
            error.contains("data.dir") && error.contains("denied"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn port_in_use_is_reported_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (flag, setting_name) in [("--http", "http.listen"), ("--mqtt", "broker.listen")] {
        let error = startup_error(&data_dir, &[flag, &address], &[]).await;
        assert!(
            error.contains(setting_name) && error.contains(&address),
            "{error}"
        );
        assert!(error.contains("Address already in use"), "{error}");
        assert!(error.contains("choose another"), "{error}");
    }
    assert!(!data_dir.exists(), "the data folder was created");
}

#[tokio::test]
async fn damaged_database_file_is_reported_and_not_modified() {
    for damage in [
        |bytes: &mut Vec<u8>| bytes[..100].fill(0x55),
        |bytes: &mut Vec<u8>| {
            // Overwrite all pages except the first, which contains the SQLite header and the
            // schema.
            for (offset, byte) in bytes.iter_mut().enumerate().skip(4096) {
                *byte = u8::try_from(offset % 251).unwrap();
            }
        },
        |bytes: &mut Vec<u8>| bytes.truncate(5000),
    ] {
        let mut connector = Connector::start().await;
        connector.send_signal("TERM");
        assert!(connector.wait_for_exit().await.success());
        let database = connector.data_dir().join("cloud-connector.db");
        let mut bytes = std::fs::read(&database).unwrap();
        damage(&mut bytes);
        std::fs::write(&database, &bytes).unwrap();
        let error = startup_error(&connector.data_dir(), &[], &[]).await;
        assert!(
            error.contains("cloud-connector.db") && error.contains("damaged"),
            "{error}"
        );
        assert!(error.contains("restore it"), "{error}");
        let is_unchanged = std::fs::read(&database).unwrap() == bytes;
        assert!(is_unchanged, "the damaged file was modified");
    }
}

#[tokio::test]
async fn expired_certificate_wrong_key_and_wrong_ca_are_reported_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let certs = Certs::init(folder.path()).await;
    let issue_expired_args = ["certs", "issue", "--server", "--days", "0", "--dir"];
    let output = connector_command()
        .args(issue_expired_args)
        .arg(certs.file_path(""))
        .output()
        .await
        .unwrap();
    assert!(output.status.success());
    let cert_file_path = |file_name: &str| certs.file_path(file_name).display().to_string();
    let (certificate, key, ca) = (
        cert_file_path("server.pem"),
        cert_file_path("server.key"),
        cert_file_path("ca.pem"),
    );
    let tls_env = [
        ("CLOUD_CONNECTOR__BROKER__TLS__LISTEN", "127.0.0.1:0"),
        (
            "CLOUD_CONNECTOR__BROKER__TLS__CERTIFICATE",
            certificate.as_str(),
        ),
        ("CLOUD_CONNECTOR__BROKER__TLS__KEY", key.as_str()),
        ("CLOUD_CONNECTOR__BROKER__TLS__CLIENT_CA", ca.as_str()),
    ];
    let error = startup_error(&data_dir, &[], &tls_env).await;
    assert!(
        error.contains("broker.tls.certificate") && error.contains("expired on"),
        "{error}"
    );
    assert!(error.contains("certs issue --server"), "{error}");

    let output = connector_command()
        .args(["certs", "issue", "--server", "--dir"])
        .arg(certs.file_path(""))
        .output();
    assert!(output.await.unwrap().status.success());
    // The private key of the CA does not match the server certificate.
    let ca_key = cert_file_path("ca.key");
    let mut env_with_wrong_key = tls_env;
    env_with_wrong_key[2].1 = &ca_key;
    let error = startup_error(&data_dir, &[], &env_with_wrong_key).await;
    assert!(error.contains("broker.tls.key"), "{error}");
    // The setting for the CA certificate refers to a key file.
    let mut env_with_wrong_ca = tls_env;
    env_with_wrong_ca[3].1 = &ca_key;
    let error = startup_error(&data_dir, &[], &env_with_wrong_ca).await;
    assert!(error.contains("broker.tls.client_ca"), "{error}");
    assert!(!data_dir.exists(), "the data folder was created");
}

#[tokio::test]
async fn doctor_prints_one_line_per_check_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let run_doctor = |env_vars: Vec<(&'static str, String)>| {
        let mut command = connector_command();
        command
            .args([
                "doctor",
                "--http",
                "127.0.0.1:0",
                "--mqtt",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(&data_dir)
            .envs(env_vars);
        async move {
            let output = command.output().await.unwrap();
            let stdout = String::from_utf8(output.stdout).unwrap();
            (output.status.code(), stdout)
        }
    };
    let (code, report) = run_doctor(vec![]).await;
    assert_eq!(code, Some(0), "{report}");
    assert!(!data_dir.exists(), "doctor created the data folder");
    for check in [
        "configuration",
        "data folder",
        "database",
        "HTTP",
        "MQTT broker",
        "tenant lookup",
        "account translator",
        "certificates",
    ] {
        let ok_line = format!("ok    {check} ");
        let lines = report.lines().filter(|line| line.starts_with(&ok_line));
        assert!(lines.count() > 0, "{check}: {report}");
    }
    let (code, report) =
        run_doctor(vec![("CLOUD_CONNECTOR__TENANT__STATIC_FILE", "/no".into())]).await;
    assert_eq!(code, Some(1));
    assert!(report.contains("FAIL  tenant lookup"), "{report}");
    let translator_url_variable = "CLOUD_CONNECTOR__TENANT__TRANSLATOR_URL";
    let (code, report) =
        run_doctor(vec![(translator_url_variable, "http://127.0.0.1:1".into())]).await;
    assert_eq!(code, Some(1));
    assert!(report.contains("FAIL  account translator"), "{report}");
    assert!(report.contains("tenant.translator_url"), "{report}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let route = axum::routing::post(async || "{}");
    let router = axum::Router::new().route("/internal/orgIds", route);
    let translator = tokio::spawn(async move { axum::serve(listener, router).await });
    let (code, report) = run_doctor(vec![(translator_url_variable, url)]).await;
    assert_eq!(code, Some(0), "{report}");
    translator.abort();
    let translator_file = "CLOUD_CONNECTOR__TENANT__TRANSLATOR_FILE";
    let (code, report) = run_doctor(vec![(translator_file, "/no".into())]).await;
    assert_eq!(code, Some(1));
    assert!(
        report.contains("tenant.translator_file: cannot read /no"),
        "{report}"
    );

    std::fs::create_dir(&data_dir).unwrap();
    std::fs::write(data_dir.join("cloud-connector.db"), [0x55; 8192]).unwrap();
    let (code, report) = run_doctor(vec![]).await;
    assert_eq!(code, Some(1));
    assert!(report.contains("FAIL  database"), "{report}");
    let (code, report) = run_doctor(vec![("CLOUD_CONNECTOR__HTTP__LISTN", "x".into())]).await;
    assert_eq!(code, Some(1));
    assert!(report.contains("did you mean http.listen?"), "{report}");
}

#[tokio::test]
async fn doctor_succeeds_while_the_connector_runs() {
    let connector = Connector::start().await;
    let output = connector_command()
        .args(["doctor", "--data-dir"])
        .arg(connector.data_dir())
        .args([
            "--http",
            connector.http_url.trim_start_matches("http://"),
            "--mqtt",
            &connector.mqtt_address,
        ])
        .output()
        .await
        .unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report.contains("in use by a running connector"), "{report}");
}
