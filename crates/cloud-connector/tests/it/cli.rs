//! Tests of commands that need no running connector: `version`, `config`, `migrate`, `certs`.

use std::os::unix::fs::PermissionsExt as _;

use test_support::connector_command;

/// Runs a command. Returns whether the command succeeded, its standard output, and its standard
/// error.
async fn run(args: &[&str]) -> (bool, String, String) {
    let output = connector_command().args(args).output().await.unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[tokio::test]
async fn version_prints_the_version_and_help_lists_the_commands() {
    for argument in ["version", "--version"] {
        let (success, stdout, _) = run(&[argument]).await;
        assert!(success);
        // Without debug information, the program contains the commit. Tests of build.rs read a commit.
        let prefix = format!("cloud-connector {} (commit ", env!("CARGO_PKG_VERSION"));
        let commit = stdout
            .trim()
            .strip_prefix(&prefix)
            .and_then(|rest| rest.strip_suffix(')'));
        let commit = commit.unwrap_or_else(|| panic!("{stdout}"));
        let is_commit = commit.len() == 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(is_commit || commit == "unknown", "{stdout}");
    }
    let (success, stdout, _) = run(&["--help"]).await;
    assert!(success);
    for command in [
        "run",
        "migrate",
        "config",
        "doctor",
        "update-inventory",
        "update-presence",
        "update-tenantless",
        "tenantless",
        "report",
        "dead-letters",
        "connections",
        "send",
        "why",
        "events",
        "login",
        "simulate",
        "certs",
        "openapi",
        "completions",
        "man",
        "version",
    ] {
        let is_listed = stdout
            .lines()
            .any(|line| line.split_whitespace().next() == Some(command));
        assert!(is_listed, "{command}: {stdout}");
    }
}

#[tokio::test]
async fn update_presence_has_nothing_to_do_in_embedded_mode() {
    let (success, stdout, _) = run(&["update-presence"]).await;
    assert!(success);
    let expected = "nothing to do: in embedded mode, the broker itself knows its connections";
    assert_eq!(stdout.trim(), expected);
}

#[tokio::test]
async fn config_prints_each_value_with_its_origin_and_hides_secrets() {
    let output = connector_command()
        .args(["config", "--http", "127.0.0.1:9"])
        .env("CLOUD_CONNECTOR__API__KEYS__CALLER", "a-very-secret-secret")
        .output()
        .await
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        stdout.contains("listen = \"127.0.0.1:9\"  # flag --http"),
        "{stdout}"
    );
    assert!(
        stdout.contains("caller = \"********\"  # environment"),
        "{stdout}"
    );
    assert!(!stdout.contains("a-very-secret"), "{stdout}");
    let (success, defaults, _) = run(&["config", "--defaults"]).await;
    assert!(success);
    assert_eq!(defaults, include_str!("../../../../config.default.toml"));
}

#[tokio::test]
async fn migrate_creates_the_database_and_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let migrate_args = ["migrate", "--data-dir", data_dir.to_str().unwrap()];
    for _ in 0..2 {
        let (success, stdout, stderr) = run(&migrate_args).await;
        assert!(success, "{stderr}");
        assert!(
            stdout.contains("cloud-connector.db is up to date"),
            "{stdout}"
        );
        assert!(data_dir.join("cloud-connector.db").exists());
    }
}

#[tokio::test]
async fn embedded_mode_cannot_run_a_single_role() {
    let (success, _, stderr) = run(&["run", "--role", "api"]).await;
    assert!(!success);
    assert!(
        stderr.contains("--role") && stderr.contains("omit --role"),
        "{stderr}"
    );
}

#[tokio::test]
async fn the_error_for_an_unknown_dead_letter_reason_lists_the_valid_reasons() {
    for command in ["list", "purge"] {
        let args = ["dead-letters", command, "--reason", "unknown"];
        let output = connector_command().args(args).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        for reason in domain::RejectReason::ALL {
            assert!(stderr.contains(reason.as_str()), "{stderr}");
        }
    }
}

#[tokio::test]
async fn certs_key_files_are_readable_only_by_the_owner_and_the_ca_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let certs_dir = folder.path().join("c");
    let certs_dir = certs_dir.to_str().unwrap();
    let (success, stdout, _) = run(&["certs", "init", "--dir", certs_dir]).await;
    assert!(success && stdout.contains("[broker.tls]"), "{stdout}");
    for (file, mode) in [("ca.key", 0o600), ("server.key", 0o600), ("ca.pem", 0o644)] {
        let metadata = std::fs::metadata(format!("{certs_dir}/{file}")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
    }
    let (success, _, stderr) = run(&["certs", "init", "--dir", certs_dir]).await;
    assert!(!success && stderr.contains("exists"), "{stderr}");
    for client_id in ["ca", "server", "a/b", "", ".."] {
        let (success, _, stderr) = run(&["certs", "issue", "--dir", certs_dir, client_id]).await;
        assert!(!success, "a certificate for {client_id:?} was issued");
        assert!(stderr.contains("client id"), "{stderr}");
    }
    let (success, _, stderr) = run(&["certs", "issue", "--dir", "/nowhere", "x"]).await;
    assert!(!success && stderr.contains("certs init"), "{stderr}");
}
