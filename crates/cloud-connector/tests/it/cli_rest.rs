//! Tests of the commands that use the REST API: how they find the connector, what they print, and
//! their exit codes. A small HTTP server has the place of the connector where a test needs responses
//! that a connector cannot be made to send.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use test_support::{CONDITION_TIMEOUT, Connector, connector_command};

const KEY: &str = "key-of-the-fake-connector";

/// The result of a command.
pub(super) struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub(super) async fn run(command: &mut tokio::process::Command) -> Outcome {
    let output = timeout(CONDITION_TIMEOUT, command.output());
    let output = output.await.expect("the command did not end").unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder with a key file.
struct KeyFolder(tempfile::TempDir);

impl KeyFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), KEY).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A request that the fake connector has received.
struct Request {
    uri: String,
    headers: HeaderMap,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// The body of a response of the fake connector.
#[derive(Clone)]
pub(super) enum Reply {
    Json(Value),
    /// A stream of events that ends after this text.
    ClosedStream(&'static str),
    /// A stream of events that stays open after this text.
    OpenStream(&'static str),
}

#[derive(Default)]
struct FakeState {
    /// The replies in their order. The last reply is repeated.
    replies: Vec<Reply>,
    requests: Vec<Request>,
}

/// An HTTP server that sends prepared replies. It requires the key `KEY`.
pub(super) struct FakeConnector {
    url: String,
    state: Arc<Mutex<FakeState>>,
    key_folder: KeyFolder,
}

impl FakeConnector {
    pub(super) async fn start(replies: &[Reply]) -> Self {
        let state = Arc::new(Mutex::new(FakeState {
            replies: replies.to_vec(),
            requests: Vec::new(),
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(reply).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            state,
            key_folder: KeyFolder::new(),
        }
    }

    /// Returns a command with the address and the key of this server.
    pub(super) fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = connector_command();
        command.args(args).args(["--url", &self.url, "--key-file"]);
        command.arg(self.key_folder.path("key"));
        command
    }

    /// Returns the paths and queries of all requests.
    pub(super) fn uris(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .requests
            .iter()
            .map(|request| request.uri.clone())
            .collect()
    }
}

async fn reply(
    State(state): State<Arc<Mutex<FakeState>>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Response {
    let has_key = headers
        .get("x-rh-cloud-connector-psk")
        .is_some_and(|key| key == KEY);
    let mut state = state.lock();
    let uri = uri.to_string();
    state.requests.push(Request { uri, headers });
    if !has_key {
        return (StatusCode::UNAUTHORIZED, "Authentication failed").into_response();
    }
    let index = (state.requests.len() - 1).min(state.replies.len() - 1);
    let stream_header = [("content-type", "text/event-stream")];
    match state.replies[index].clone() {
        Reply::Json(document) => document.to_string().into_response(),
        Reply::ClosedStream(text) => (stream_header, text).into_response(),
        Reply::OpenStream(text) => {
            let text = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(text))]);
            let body = Body::from_stream(text.chain(futures::stream::pending()));
            (stream_header, body).into_response()
        }
    }
}

/// Returns an address on which no process listens.
pub(super) async fn unused_address() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn an_unreachable_address_exits_with_3_and_names_the_address_and_the_fix() {
    let folder = KeyFolder::new();
    let address = unused_address().await;
    let url = format!("http://{address}");
    for command in [
        ["why", "a"].as_slice(),
        &["events", "--follow", "--org", "1"],
    ] {
        let mut command_line = connector_command();
        command_line
            .args(command)
            .args(["--url", &url, "--key-file"]);
        let outcome = run(command_line.arg(folder.path("key"))).await;
        assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
        assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        for expected in [&address, "--url", "Connection refused", "check the URL"] {
            assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
        }
    }
}

#[tokio::test]
async fn a_wrong_key_exits_with_1_and_names_the_key_file() {
    let fake_connector = FakeConnector::start(&[Reply::Json(json!({}))]).await;
    let key_file = fake_connector.key_folder.path("key");
    std::fs::write(&key_file, "another-key").unwrap();
    for args in [
        ["why", "a"].as_slice(),
        &["events", "--follow", "--org", "1"],
    ] {
        let outcome = run(&mut fake_connector.command(args)).await;
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        let key_file = key_file.to_str().unwrap();
        assert!(outcome.stderr.contains(key_file), "{}", outcome.stderr);
        assert!(
            !outcome.stderr.contains("another-key"),
            "{}",
            outcome.stderr
        );
    }
}

#[tokio::test]
async fn wrong_usage_exits_with_2_and_names_the_missing_option() {
    let folder = KeyFolder::new();
    let key_file = folder.path("key");
    let key_file = key_file.to_str().unwrap();
    let url = ["--url", "http://127.0.0.1:9"];
    for (args, expected) in [
        (
            ["why", "a", "--unknown-option"].as_slice(),
            "--unknown-option",
        ),
        (&["why", "a", url[0], url[1]], "--key-file"),
        (
            &["why", "a", url[0], url[1], "--data-dir", "d"],
            "--data-dir",
        ),
        (&["why", "a", "--profile", "none"], "profiles.none"),
        (
            &["why", "a/b", url[0], url[1], "--key-file", key_file],
            "client id",
        ),
        (
            &["events", url[0], url[1], "--key-file", key_file],
            "--follow",
        ),
        (
            &["events", url[0], url[1], "--key-file", key_file],
            "--since",
        ),
        (
            &["events", "--follow", url[0], url[1], "--key-file", key_file],
            "--org",
        ),
    ] {
        let mut command = connector_command();
        command.env("XDG_CONFIG_HOME", folder.path("config"));
        let outcome = run(command.args(args)).await;
        assert_eq!(outcome.code, Some(2), "{args:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(expected),
            "{args:?}: {}",
            outcome.stderr
        );
    }
}

/// Returns the address in the data folder. Returns `None` if the folder contains no address.
fn stored_address(data_dir: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(data_dir.join("address.json")).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

#[tokio::test]
async fn a_connector_on_this_machine_is_found_in_its_data_folder_while_it_runs() {
    let mut connector = Connector::start().await;
    let data_dir = connector.data_dir();
    let command = |connector: &Connector| {
        let mut command = connector.connector_command();
        command.env("XDG_CONFIG_HOME", data_dir.join("no-profiles"));
        command.args(["why", "a"]);
        command
    };
    let address = stored_address(&data_dir).unwrap();
    let expected_url = format!("{}/api/cloud-connector", connector.http_url);
    assert_eq!(address["url"], expected_url);
    // The client `a` is unknown, so the command finds a problem. The connector accepts the key.
    let outcome = run(&mut command(&connector)).await;
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("API key"), "{}", outcome.stderr);

    connector.kill().await;
    assert!(stored_address(&data_dir).is_some());
    let outcome = run(&mut command(&connector)).await;
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    let folder = data_dir.to_str().unwrap();
    assert!(outcome.stderr.contains(folder), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("cloud-connector run"),
        "{}",
        outcome.stderr
    );

    connector.start_process().await;
    let outcome = run(&mut command(&connector)).await;
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    connector.send_signal("TERM");
    assert!(connector.wait_for_exit().await.success());
    assert_eq!(stored_address(&data_dir), None);
}

#[tokio::test]
async fn why_prints_the_diagnosis_and_its_exit_code_is_0_only_for_a_connected_client() {
    for (state, expected_code) in [("connected", 0), ("disconnected", 1), ("unknown", 1)] {
        let diagnosis = json!({
            "state": state, "summary": "The summary.", "org_id": "10000", "suggestion": "Wait.",
        });
        let fake_connector = FakeConnector::start(&[Reply::Json(diagnosis.clone())]).await;
        let outcome = run(&mut fake_connector.command(&["why", "a b"])).await;
        assert_eq!(outcome.code, Some(expected_code), "{}", outcome.stderr);
        assert!(
            outcome.stdout.starts_with("The summary.\n"),
            "{}",
            outcome.stdout
        );
        assert!(
            outcome.stdout.ends_with("Suggestion: Wait.\n"),
            "{}",
            outcome.stdout
        );
        assert!(!outcome.stdout.contains('\u{1b}'), "{}", outcome.stdout);

        let mut command = fake_connector.command(&["why", "a b", "-o", "json"]);
        let outcome = run(command.args(["--key-name", "support"])).await;
        let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(document, diagnosis);

        let requests = &fake_connector.state.lock().requests;
        let expected_uri = "/api/cloud-connector/v2/clients/a%20b/diagnosis";
        assert_eq!(requests[0].uri, expected_uri);
        let key_name = |index: usize| requests[index].header("x-rh-cloud-connector-client-id");
        assert_eq!((key_name(0), key_name(1)), (Some("local"), Some("support")));
        assert_eq!(requests[0].header("x-rh-cloud-connector-org-id"), None);
    }
}

#[tokio::test]
async fn a_profile_contains_the_address_and_the_key() {
    let diagnosis = json!({"state": "connected", "summary": "The summary."});
    let fake_connector = FakeConnector::start(&[Reply::Json(diagnosis)]).await;
    let folder = KeyFolder::new();
    let config_folder = folder.path("cloud-connector");
    std::fs::create_dir(&config_folder).unwrap();
    let profile = format!(
        "[profiles.test]\nurl = \"{}\"\nkey_name = \"support\"\nkey_file = \"{}\"\n",
        fake_connector.url,
        folder.path("key").display()
    );
    std::fs::write(config_folder.join("config.toml"), profile).unwrap();
    let mut command = connector_command();
    command.env("XDG_CONFIG_HOME", folder.path(""));
    let outcome = run(command.args(["why", "a", "--profile", "test"])).await;
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let requests = &fake_connector.state.lock().requests;
    let key_name = requests[0].header("x-rh-cloud-connector-client-id");
    assert_eq!(key_name, Some("support"));
}

const EVENT_6: &str = "id: 6\nevent: connection.online\n\
                       data: {\"type\":\"connection.online\",\"client_id\":\"a\"}\n\n";

#[tokio::test]
async fn events_with_since_ends_at_the_current_position() {
    let replies = [
        Reply::OpenStream("id: 8\n\n"),
        Reply::OpenStream(
            "id: 5\n\nid: 6\nevent: connection.online\ndata: {\"client_id\":\"a\"}\n\n: c\n\n\
             id: 8\n\nid: 9\nevent: connection.online\ndata: {\"client_id\":\"later\"}\n\n",
        ),
    ];
    let fake_connector = FakeConnector::start(&replies).await;
    let args = ["events", "--since", "5", "--org", "77", "-o", "json"];
    let mut command = fake_connector.command(&args);
    command.args([
        "--type",
        "connection.online,connection.offline",
        "--client",
        "a",
    ]);
    let outcome = run(command.args(["--dispatcher", "rhc"])).await;
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let first_line = outcome.stdout.lines().next().unwrap();
    let event: Value = serde_json::from_str(first_line).unwrap();
    let expected = json!({"client_id": "a", "position": "6", "type": "connection.online"});
    assert_eq!(event, expected);
    assert!(!outcome.stdout.contains("later"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("--since 8"), "{}", outcome.stderr);

    let requests = &fake_connector.state.lock().requests;
    assert_eq!(requests[0].header("last-event-id"), None);
    assert_eq!(requests[1].header("last-event-id"), Some("5"));
    assert_eq!(
        requests[1].header("x-rh-cloud-connector-org-id"),
        Some("77")
    );
    let expected_uri = "/api/cloud-connector/v2/events?type=connection.online\
                        &type=connection.offline&client_id=a&dispatcher=rhc";
    assert_eq!(requests[1].uri, expected_uri);
}

#[tokio::test]
async fn events_with_since_exits_with_1_if_the_events_are_gone() {
    let replies = [
        Reply::OpenStream("id: 8\n\n"),
        Reply::OpenStream("id: 8\nevent: reset\ndata: {}\n\n"),
    ];
    let fake_connector = FakeConnector::start(&replies).await;
    let args = ["events", "--since", "5", "--org", "77"];
    let outcome = run(&mut fake_connector.command(&args)).await;
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("reset"), "{}", outcome.stderr);
}

#[tokio::test]
async fn events_with_follow_resumes_after_an_interruption_and_reports_a_reset() {
    let replies = [
        Reply::ClosedStream(EVENT_6),
        Reply::OpenStream(
            "id: 9\nevent: reset\ndata: {}\n\n\
             id: 10\nevent: connection.offline\ndata: {\"client_id\":\"b\"}\n\n",
        ),
    ];
    let fake_connector = FakeConnector::start(&replies).await;
    let mut command = fake_connector.command(&["events", "--follow", "--org", "77"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let read_output = async {
        let first = stdout.next_line().await.unwrap().unwrap();
        assert!(first.contains("connection.online"), "{first}");
        let note = stderr.next_line().await.unwrap().unwrap();
        assert!(note.contains("reconnecting in 1 s"), "{note}");
        let note = stderr.next_line().await.unwrap().unwrap();
        assert!(note.contains("reset"), "{note}");
        let second = stdout.next_line().await.unwrap().unwrap();
        assert!(second.contains("connection.offline"), "{second}");
    };
    timeout(CONDITION_TIMEOUT, read_output)
        .await
        .expect("timed out waiting for the events");
    child.kill().await.unwrap();
    let requests = &fake_connector.state.lock().requests;
    assert_eq!(requests[0].header("last-event-id"), None);
    assert_eq!(requests[1].header("last-event-id"), Some("6"));
}
