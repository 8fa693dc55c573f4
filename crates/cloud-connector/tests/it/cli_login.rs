//! Tests of `login` against a connector in embedded mode.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::cli_connections::run_on_terminal;
use crate::cli_rest::{Outcome, run, unused_address};
use test_support::{Connector, connector_command};

/// A connector, and commands that do not find it without a profile.
struct LoginFixture {
    connector: Connector,
    key: String,
    home: tempfile::TempDir,
}

impl LoginFixture {
    async fn start() -> Self {
        let connector = Connector::start().await;
        let key = std::fs::read_to_string(connector.data_dir().join("local.key")).unwrap();
        let home = tempfile::tempdir().unwrap();
        Self {
            connector,
            key: key.trim().to_owned(),
            home,
        }
    }

    fn profile_file(&self) -> PathBuf {
        self.home.path().join(".config/cloud-connector/config.toml")
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = connector_command();
        command
            .env("HOME", self.home.path())
            .env_remove("XDG_CONFIG_HOME");
        command.current_dir(self.home.path()).args(args);
        command
    }

    async fn run(&self, expected_code: i32, command: &mut tokio::process::Command) -> Outcome {
        let outcome = run(command).await;
        let Outcome {
            code,
            stdout,
            stderr,
        } = &outcome;
        assert_eq!(*code, Some(expected_code), "{stdout}{stderr}");
        assert!(
            !stdout.contains(&self.key) && !stderr.contains(&self.key),
            "the key was printed"
        );
        outcome
    }
}

#[tokio::test]
async fn login_saves_a_profile_that_other_commands_use() {
    let fixture = LoginFixture::start().await;
    let key_file = fixture.connector.data_dir().join("local.key");
    let key_file = key_file.to_str().unwrap();
    let url = fixture.connector.http_url.clone();
    let login = ["login", "--url", &url, "--key-name", "local"];

    // The key comes from a file.
    let mut args = login.to_vec();
    args.extend(["--org", "10000", "--key-file", key_file]);
    let outcome = fixture.run(0, &mut fixture.command(&args)).await;
    assert!(
        outcome.stdout.contains("saved profile default"),
        "{}",
        outcome.stdout
    );
    let list = ["connections", "list", "-o", "json"];
    let outcome = fixture.run(0, &mut fixture.command(&list)).await;
    assert_eq!(
        serde_json::from_str::<Value>(&outcome.stdout).unwrap(),
        serde_json::json!([])
    );
    let file = fixture.profile_file();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);

    // The key comes from the environment. Without an organization, the key needs the scope `management`.
    let mut args = login.to_vec();
    args.extend(["--profile", "support"]);
    let mut command = fixture.command(&args);
    let outcome = fixture
        .run(0, command.env("CLOUD_CONNECTOR_KEY", &fixture.key))
        .await;
    assert!(
        outcome.stdout.contains("--profile support"),
        "{}",
        outcome.stdout
    );
    let why = ["why", "pc-9", "--profile", "support"];
    let outcome = fixture.run(1, &mut fixture.command(&why)).await;
    let expected = "The client is unknown";
    assert!(outcome.stdout.contains(expected), "{}", outcome.stdout);
    fixture.run(0, &mut fixture.command(&list)).await;
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("[profiles.default]") && text.contains("[profiles.support]"),
        "{text}"
    );
}

#[tokio::test]
async fn login_prompts_for_the_key_without_echo() {
    let fixture = LoginFixture::start().await;
    let url = fixture.connector.http_url.clone();
    let args = [
        "login",
        "--url",
        &url,
        "--key-name",
        "local",
        "--org",
        "10000",
    ];
    let (code, output) = run_on_terminal(
        fixture.command(&args),
        "API key (not shown): ",
        &fixture.key,
    )
    .await;
    assert_eq!(code, Some(0), "{output}");
    assert!(
        !output.contains(&fixture.key),
        "the terminal showed the key"
    );
    fixture
        .run(0, &mut fixture.command(&["connections", "list"]))
        .await;
}

#[tokio::test]
async fn a_failed_login_saves_nothing_and_names_the_fix() {
    let fixture = LoginFixture::start().await;
    let url = fixture.connector.http_url.clone();
    let unused_url = format!("http://{}", unused_address().await);
    let key_file = fixture.home.path().join("key");
    std::fs::write(&key_file, "another-secret").unwrap();
    let key_file = key_file.to_str().unwrap();
    let key_option = ["--key-file", key_file];
    for (expected_code, args, expected) in [
        (
            1,
            ["--url", &url, "--key-name", "local", "--org", "1"].as_slice(),
            "rejected the API key",
        ),
        (1, &["--url", &url, "--key-name", "local"], "--org ORG"),
        (
            3,
            &["--url", &unused_url, "--key-name", "local", "--org", "1"],
            "Connection refused",
        ),
        (2, &["--key-name", "local", "--org", "1"], "--url"),
        (2, &["--url", &url, "--org", "1"], "--key-name"),
        (2, &["--url", "ftp://a", "--key-name", "local"], "http"),
        (
            2,
            &["--url", &url, "--key-name", "local", "--profile", ""],
            "name of the profile",
        ),
        (
            2,
            &["--url", &url, "--key-name", "local", "--data-dir", "x"],
            "--data-dir",
        ),
    ] {
        let mut command = fixture.command(&["login"]);
        let outcome = fixture
            .run(expected_code, command.args(key_option).args(args))
            .await;
        assert!(
            outcome.stderr.contains(expected),
            "{args:?}: {}",
            outcome.stderr
        );
        assert!(!outcome.stderr.contains("another-secret"), "{args:?}");
        assert!(!fixture.profile_file().exists(), "{args:?}");
    }
    // Without a terminal, the user cannot enter the key.
    let args = ["login", "--url", &url, "--key-name", "local", "--org", "1"];
    let outcome = fixture.run(2, &mut fixture.command(&args)).await;
    assert!(
        outcome.stderr.contains("CLOUD_CONNECTOR_KEY"),
        "{}",
        outcome.stderr
    );
}
