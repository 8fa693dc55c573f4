//! Tests of the commands that show one client or act on it.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use super::{CliFixture, respond, run_on_terminal};
use test_support::CONDITION_TIMEOUT;
use test_support::mqtt::{control_out_topic, offline_message};

#[tokio::test]
async fn show_and_history_describe_connected_and_disconnected_clients() {
    let fixture = CliFixture::start().await;
    let mut client = fixture.connect("pc-1").await;
    let outcome = fixture.run(0, &["connections", "show", "pc-1"]).await;
    for expected in ["status", "connected\n", "10000", "raw.example", "echo"] {
        assert!(outcome.stdout.contains(expected), "{}", outcome.stdout);
    }
    let details = fixture.run_json(&["connections", "show", "pc-1"]).await;
    assert_eq!(details["status"], "connected");

    client
        .must_publish(&control_out_topic("pc-1"), &offline_message_of_now())
        .await;
    fixture.connector.wait_until_disconnected("pc-1").await;
    let outcome = fixture.run(0, &["connections", "show", "pc-1"]).await;
    for expected in ["disconnected\n", "disconnected at", "reason"] {
        assert!(outcome.stdout.contains(expected), "{}", outcome.stdout);
    }
    let details = fixture.run_json(&["connections", "show", "pc-1"]).await;
    assert_eq!(details["status"], "disconnected");

    let history = fixture.run_json(&["connections", "history", "pc-1"]).await;
    let statuses: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["status"])
        .collect();
    assert_eq!(statuses, ["offline", "online"]);
    let outcome = fixture
        .run(0, &["connections", "history", "pc-1", "--limit", "1"])
        .await;
    assert_eq!(outcome.stdout.lines().count(), 2, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("offline"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("--limit"), "{}", outcome.stderr);
}

fn offline_message_of_now() -> Value {
    let mut message = offline_message();
    message["sent"] = json!(jiff::Timestamp::now().to_string());
    message["message_id"] = json!(uuid::Uuid::new_v4());
    message
}

#[tokio::test]
async fn ping_and_check_report_whether_the_client_responds() {
    let fixture = CliFixture::start().await;
    let mut client = fixture.connect("pc-1").await;
    let args = ["connections", "ping", "pc-1", "--timeout", "25"];
    let (outcome, _) = tokio::join!(fixture.run(0, &args), respond(&mut client, "pc-1"));
    assert!(
        outcome.stdout.starts_with("pc-1 responded in "),
        "{}",
        outcome.stdout
    );
    let args = ["connections", "ping", "pc-1", "--timeout", "1"];
    let (outcome, ping) = tokio::join!(fixture.run(1, &args), client.next_message());
    let message_id = ping.1["message_id"].as_str().unwrap();
    for expected in ["did not respond", message_id] {
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }

    let outcome = fixture.run(0, &["connections", "check", "pc-1"]).await;
    assert_eq!(outcome.stdout, "ok    pc-1 is connected\n");
    let args = [
        "connections",
        "check",
        "pc-1",
        "--level",
        "2",
        "--timeout",
        "25",
    ];
    let (outcome, _) = tokio::join!(fixture.run(0, &args), respond(&mut client, "pc-1"));
    assert!(
        outcome.stdout.contains("and responded in"),
        "{}",
        outcome.stdout
    );
    let args = [
        "connections",
        "check",
        "pc-1",
        "--level",
        "3",
        "--directive",
        "echo",
        "--timeout",
        "25",
    ];
    let (_, message) = tokio::join!(fixture.run(0, &args), respond(&mut client, "pc-1"));
    assert_eq!(message["directive"], "echo");
    let args = [
        "connections",
        "check",
        "pc-1",
        "--level",
        "2",
        "--timeout",
        "1",
    ];
    let outcome = fixture.run(1, &args).await;
    assert!(
        outcome.stdout.starts_with("FAIL  pc-1"),
        "{}",
        outcome.stdout
    );
}

#[tokio::test]
async fn reconnect_and_disconnect_send_commands_to_the_client() {
    let fixture = CliFixture::start().await;
    let mut client = fixture.connect("pc-1").await;
    let args = [
        "connections",
        "reconnect",
        "pc-1",
        "--delay",
        "7",
        "--message",
        "test",
    ];
    let outcome = fixture.run(0, &args).await;
    let (_, command) = client.next_message().await;
    assert_eq!(command["content"]["command"], "reconnect");
    assert_eq!(
        command["content"]["arguments"]["delay"]
            .to_string()
            .trim_matches('"'),
        "7"
    );
    let id = command["message_id"].as_str().unwrap();
    assert_eq!(
        outcome.stdout,
        format!("sent the command `reconnect` to pc-1 (message {id})\n")
    );

    // Without a terminal, the user cannot confirm.
    let outcome = fixture.run(2, &["connections", "disconnect", "pc-1"]).await;
    assert!(outcome.stderr.contains("--yes"), "{}", outcome.stderr);
    assert_eq!(fixture.connector.list_client_ids("10000").await, ["pc-1"]);
    let response = fixture
        .run_json(&["connections", "disconnect", "pc-1", "--yes"])
        .await;
    let (_, command) = client.next_message().await;
    assert_eq!(command["content"]["command"], "disconnect");
    assert_eq!(command["message_id"], response["id"]);
}

#[tokio::test]
async fn disconnect_prompts_on_a_terminal_for_the_client_id() {
    let fixture = CliFixture::start().await;
    let mut client = fixture.connect("pc-1").await;
    for (input, expected_code) in [("yes", 1), ("pc-1", 0)] {
        let (code, output) = fixture
            .run_on_terminal(
                &["connections", "disconnect", "pc-1"],
                "to confirm: ",
                input,
            )
            .await;
        assert_eq!(code, Some(expected_code), "{output}");
        let expected = if input == "pc-1" {
            "sent the command `disconnect` to pc-1 (message "
        } else {
            "nothing was sent"
        };
        assert!(output.contains(expected), "{output}");
    }
    let (_, command) = client.next_message().await;
    assert_eq!(command["content"]["command"], "disconnect");
}

#[tokio::test]
async fn send_prints_the_message_id_and_reads_the_payload_from_three_sources() {
    let fixture = CliFixture::start().await;
    let mut client = fixture.connect("pc-1").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payload.json");
    std::fs::write(&file, "{\"from\": \"file\"}").unwrap();
    let file = format!("@{}", file.display());
    for (args, expected) in [
        (["send", "pc-1", "echo"].as_slice(), Value::Null),
        (&["send", "pc-1", "echo", "-1"], json!(-1)),
        (
            &["send", "pc-1", "echo", "{\"a\": [1.5]}"],
            json!({"a": [1.5]}),
        ),
        (&["send", "pc-1", "echo", &file], json!({"from": "file"})),
    ] {
        let outcome = fixture.run(0, args).await;
        let (topic, message) = client.next_message().await;
        assert_eq!(topic, "redhat/insights/pc-1/data/in");
        assert_eq!(message["content"], expected);
        assert_eq!(message["directive"], "echo");
        assert_eq!(
            outcome.stdout,
            format!("{}\n", message["message_id"].as_str().unwrap())
        );
    }
    let mut command = fixture.command(&[
        "send",
        "pc-1",
        "echo",
        "-",
        "--metadata",
        "k=v",
        "-o",
        "json",
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"\"from standard input\"").await.unwrap();
    drop(stdin);
    let output = timeout(CONDITION_TIMEOUT, child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let response: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (_, message) = client.next_message().await;
    assert_eq!(message["content"], "from standard input");
    assert_eq!(message["metadata"], json!({"k": "v"}));
    assert_eq!(message["message_id"], response["id"]);
}

#[tokio::test]
async fn a_terminal_shows_colors_and_no_color_turns_them_off() {
    let fixture = CliFixture::start().await;
    let _client = fixture.connect("pc-1").await;
    let args = ["connections", "show", "pc-1"];
    let (_, output) = run_on_terminal(fixture.command(&args), "", "").await;
    assert!(output.contains("\u{1b}[32mconnected\u{1b}[0m"), "{output}");
    let mut command = fixture.command(&args);
    command.env("NO_COLOR", "1");
    let (_, output) = run_on_terminal(command, "", "").await;
    assert!(
        output.contains("connected") && !output.contains('\u{1b}'),
        "{output}"
    );
}
