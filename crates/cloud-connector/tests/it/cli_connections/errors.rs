//! Tests of wrong input, unknown clients and unreachable connectors: exit codes and texts.

use super::CliFixture;
use crate::cli_rest::{run, unused_address};

#[tokio::test]
async fn an_unknown_client_exits_with_1_and_names_the_organization_and_the_fix() {
    let fixture = CliFixture::start().await;
    for args in [
        ["connections", "show", "pc-9"].as_slice(),
        &["connections", "history", "pc-9"],
        &["connections", "ping", "pc-9"],
        &["connections", "reconnect", "pc-9"],
        &["connections", "disconnect", "pc-9", "--yes"],
        &["send", "pc-9", "echo"],
    ] {
        let outcome = fixture.run(1, args).await;
        assert_eq!(outcome.stdout, "", "{args:?}");
        for expected in ["organization 10000", "pc-9", "cloud-connector why", "--org"] {
            assert!(
                outcome.stderr.contains(expected),
                "{args:?}: {}",
                outcome.stderr
            );
        }
    }
    let outcome = fixture.run(1, &["connections", "check", "pc-9"]).await;
    assert_eq!(outcome.stdout, "FAIL  pc-9 is disconnected\n");
}

/// One command line of each command for one organization.
const COMMANDS: [&[&str]; 8] = [
    &["connections", "list"],
    &["connections", "show", "pc-1"],
    &["connections", "history", "pc-1"],
    &["connections", "ping", "pc-1"],
    &["connections", "check", "pc-1"],
    &["connections", "reconnect", "pc-1"],
    &["connections", "disconnect", "pc-1", "--yes"],
    &["send", "pc-1", "echo"],
];

#[tokio::test]
async fn wrong_input_exits_with_2_and_names_the_fix() {
    let fixture = CliFixture::start().await;
    for (args, expected) in [
        (
            ["connections", "list", "--tag", "a"].as_slice(),
            "KEY:VALUE",
        ),
        (
            &["connections", "list", "--seen-after", "yesterday"],
            "RFC 3339",
        ),
        (&["connections", "list", "--limit", "0"], "--limit"),
        (&["connections", "list", "--all", "--limit", "1"], "--all"),
        (&["connections", "list", "--fqdn", ""], "filter is empty"),
        (&["connections", "list", "-o", "xml"], "yaml"),
        (
            &["connections", "list", "--watch", "--interval", "0"],
            "--interval",
        ),
        (&["connections", "list", "--interval", "3"], "--watch"),
        (&["connections", "show"], "CLIENT"),
        (&["connections", "show", "a/b"], "client id"),
        (&["connections", "history", "pc-1", "--all"], "--all"),
        (
            &["connections", "ping", "pc-1", "--timeout", "26"],
            "1..=25",
        ),
        (&["connections", "check", "pc-1", "--level", "4"], "1..=3"),
        (
            &["connections", "check", "pc-1", "--level", "3"],
            "--directive",
        ),
        (
            &["connections", "check", "pc-1", "--timeout", "3"],
            "--level 2",
        ),
        (
            &[
                "connections",
                "check",
                "pc-1",
                "--level",
                "2",
                "--directive",
                "x",
            ],
            "--level 3",
        ),
        (
            &["connections", "reconnect", "pc-1", "--delay", "x"],
            "--delay",
        ),
        (&["connections", "disconnect", "pc-1"], "--yes"),
        (&["send", "pc-1"], "DIRECTIVE"),
        (&["send", "pc-1", " "], "directive is empty"),
        (&["send", "pc-1", "echo", "text"], "quotation marks"),
        (&["send", "pc-1", "echo", "@/nowhere"], "/nowhere"),
        (&["send", "pc-1", "echo", "-"], "standard input"),
        (
            &["send", "pc-1", "echo", "1", "--metadata", "k"],
            "KEY=VALUE",
        ),
        (&["send", "pc-1", "echo", "1", "--wait", "3"], "--wait"),
    ] {
        let outcome = fixture.run(2, args).await;
        assert!(
            outcome.stderr.contains(expected),
            "{args:?}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
}

#[tokio::test]
async fn every_command_exits_with_3_if_the_connector_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, "the-secret-key").unwrap();
    let url = format!("http://{}", unused_address().await);
    for args in COMMANDS {
        let mut command = test_support::connector_command();
        command
            .args(args)
            .args(["--org", "1", "--url", &url, "--key-file"])
            .arg(&key_file);
        let outcome = run(&mut command).await;
        assert_eq!(outcome.code, Some(3), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{args:?}");
        for expected in [url.as_str(), "Connection refused", "check the URL"] {
            assert!(
                outcome.stderr.contains(expected),
                "{args:?}: {}",
                outcome.stderr
            );
        }
        assert!(!outcome.stderr.contains("the-secret-key"), "{args:?}");
    }
}

#[tokio::test]
async fn every_command_exits_with_1_if_the_connector_rejects_the_key() {
    let fixture = CliFixture::start().await;
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, "the-secret-key").unwrap();
    for args in COMMANDS {
        let mut args = args.to_vec();
        args.extend(["--key-file", key_file.to_str().unwrap()]);
        let outcome = fixture.run(1, &args).await;
        for expected in ["rejected the API key", "scope `tenant`"] {
            assert!(
                outcome.stderr.contains(expected),
                "{args:?}: {}",
                outcome.stderr
            );
        }
        assert!(!outcome.stderr.contains("the-secret-key"), "{args:?}");
    }
}
