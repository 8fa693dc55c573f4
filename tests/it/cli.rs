//! Commands beside `run`.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::program;

async fn output(args: &[&str]) -> (bool, String, String) {
    let done = program().args(args).output().await.unwrap();
    (
        done.status.success(),
        String::from_utf8(done.stdout).unwrap(),
        String::from_utf8(done.stderr).unwrap(),
    )
}

#[tokio::test]
async fn version_and_help_say_what_it_is() {
    let (ok, said, _) = output(&["version"]).await;
    assert!(ok);
    assert_eq!(
        said.trim(),
        format!("cloud-connector {}", env!("CARGO_PKG_VERSION"))
    );
    let (ok, said, _) = output(&["--help"]).await;
    assert!(ok);
    for command in [
        "run", "migrate", "config", "doctor", "simulate", "certs", "version",
    ] {
        assert!(said.contains(command), "{said}");
    }
}

#[tokio::test]
async fn config_prints_what_is_in_effect_and_where_it_came_from() {
    let done = program()
        .args(["config", "--http", "127.0.0.1:9"])
        .env("CLOUD_CONNECTOR__API__KEYS__CALLER", "a-very-secret-secret")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success());
    assert!(
        said.contains("listen = \"127.0.0.1:9\"  # flag --http"),
        "{said}"
    );
    assert!(
        said.contains("caller = \"********\"  # environment"),
        "{said}"
    );
    assert!(!said.contains("a-very-secret"), "{said}");
    let (ok, defaults, _) = output(&["config", "--defaults"]).await;
    assert!(ok);
    assert_eq!(defaults, include_str!("../../config.default.toml"));
}

#[tokio::test]
async fn migrate_makes_the_database_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (ok, said, _) = output(&["migrate", "--data-dir", data.to_str().unwrap()]).await;
    assert!(ok);
    assert!(said.contains("cloud-connector.db is up to date"), "{said}");
    assert!(data.join("cloud-connector.db").exists());
    let (ok, _, _) = output(&["migrate", "--data-dir", data.to_str().unwrap()]).await;
    assert!(ok, "a second time changes nothing");
}

#[tokio::test]
async fn roles_of_the_embedded_set_up_run_together() {
    let (ok, _, said) = output(&["run", "--role", "api"]).await;
    assert!(!ok);
    assert!(
        said.contains("--role") && said.contains("leave --role out"),
        "{said}"
    );
}

#[tokio::test]
async fn certs_are_private_and_never_overwrite_the_authority() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("c");
    let dir = dir.to_str().unwrap();
    let (ok, said, _) = output(&["certs", "init", "--dir", dir]).await;
    assert!(ok && said.contains("[broker.tls]"), "{said}");
    for (file, mode) in [("ca.key", 0o600), ("server.key", 0o600), ("ca.pem", 0o644)] {
        let found = std::fs::metadata(format!("{dir}/{file}")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, mode, "{file}");
    }
    let (ok, _, said) = output(&["certs", "init", "--dir", dir]).await;
    assert!(!ok && said.contains("exists"), "{said}");
    for name in ["ca", "server", "a/b", "", ".."] {
        let (ok, _, said) = output(&["certs", "issue", "--dir", dir, name]).await;
        assert!(!ok, "{name:?} was issued");
        assert!(said.contains("client id"), "{said}");
    }
    let (ok, _, said) = output(&["certs", "issue", "--dir", "/nowhere", "x"]).await;
    assert!(!ok && said.contains("certs init"), "{said}");
}
