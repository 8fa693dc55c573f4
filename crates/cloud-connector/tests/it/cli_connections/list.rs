//! Tests of `connections list`.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use super::{CliFixture, run_on_terminal};
use crate::cli_rest::{FakeConnector, Reply, run};
use test_support::CONDITION_TIMEOUT;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};

#[tokio::test]
async fn list_shows_the_connections_that_match_the_filters() {
    let fixture = CliFixture::start().await;
    let outcome = fixture.run(0, &["connections", "list"]).await;
    assert_eq!(outcome.stdout, "no connections\n");
    assert_eq!(fixture.run_json(&["connections", "list"]).await, json!([]));

    let mut clients = Vec::new();
    for client_id in ["pc-1", "pc-2", "srv-1"] {
        clients.push(fixture.connect(client_id).await);
    }
    let outcome = fixture.run(0, &["connections", "list"]).await;
    let ids = |text: &str| {
        let lines = text.lines().skip(1);
        lines
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&outcome.stdout), ["pc-1", "pc-2", "srv-1"]);
    assert!(outcome.stdout.starts_with("CLIENT "), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("raw.example"), "{}", outcome.stdout);
    assert_eq!(outcome.stderr, "");

    let all_filters = [
        "--search",
        "srv",
        "--dispatcher",
        "echo",
        "--tag",
        "make:raw",
        "--fact",
        "fqdn:raw.example",
        "--fqdn",
        "raw.example",
        "--seen-after",
        "2020-01-01T02:00:00+02:00",
        "--seen-before",
        "2999-01-01T00:00:00Z",
    ];
    let mut args = vec!["connections", "list"];
    args.extend(all_filters);
    assert_eq!(ids(&fixture.run(0, &args).await.stdout), ["srv-1"]);
    for no_match in [
        ["--dispatcher", "other"],
        ["--tag", "make:other"],
        ["--fact", "rack:1"],
        ["--fqdn", "other"],
        ["--insights-id", "1"],
        ["--machine-id", "1"],
        ["--bios-uuid", "1"],
        ["--subscription-manager-id", "1"],
        ["--satellite-id", "1"],
        ["--ip-address", "1"],
        ["--mac-address", "1"],
        ["--search", "x"],
        ["--seen-after", "2999-01-01T00:00:00Z"],
        ["--seen-before", "2020-01-01T00:00:00Z"],
        ["--org", "20000"],
    ] {
        let outcome = fixture
            .run(0, &["connections", "list", no_match[0], no_match[1]])
            .await;
        assert_eq!(outcome.stdout, "no connections\n", "{no_match:?}");
    }

    let outcome = fixture
        .run(0, &["connections", "list", "--limit", "2"])
        .await;
    assert_eq!(ids(&outcome.stdout), ["pc-1", "pc-2"]);
    assert!(outcome.stderr.contains("--all"), "{}", outcome.stderr);
    let outcome = fixture.run(0, &["connections", "list", "--all"]).await;
    assert_eq!(ids(&outcome.stdout).len(), 3);
    assert_eq!(outcome.stderr, "");

    let list = fixture
        .run_json(&["connections", "list", "--limit", "2"])
        .await;
    assert_eq!(list[1]["client_id"], "pc-2");
    assert_eq!(list.as_array().unwrap().len(), 2);
    let yaml = fixture
        .run(0, &["connections", "list", "-o", "yaml"])
        .await
        .stdout;
    let list: Value = serde_norway::from_str(&yaml).unwrap();
    assert_eq!(list[2]["canonical_facts"], json!({"fqdn": "raw.example"}));
}

#[tokio::test]
async fn list_requests_all_pages_with_the_cursor() {
    let page = |ids: &[&str], cursor: Option<&str>| {
        let data: Vec<Value> = ids.iter().map(|id| json!({"client_id": id})).collect();
        Reply::Json(json!({"meta": {"cursor": cursor}, "links": {}, "data": data}))
    };
    let pages = [
        page(&["a", "b"], Some("b")),
        page(&["c c"], Some("c c")),
        page(&["d"], None),
    ];
    for (extra_args, expected_ids, expected_limits) in [
        (
            ["--all"].as_slice(),
            vec!["a", "b", "c c", "d"],
            vec!["1000", "1000", "1000"],
        ),
        (&["--limit", "3"], vec!["a", "b", "c c"], vec!["3", "1"]),
    ] {
        let fake_connector = FakeConnector::start(&pages).await;
        let mut args = vec!["connections", "list", "--org", "7", "-o", "json"];
        args.extend(extra_args);
        let outcome = run(&mut fake_connector.command(&args)).await;
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let list: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let list = list.as_array().unwrap();
        let ids: Vec<&str> = list
            .iter()
            .map(|row| row["client_id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, expected_ids);
        let cursors = ["", "b", "c+c"];
        let uris = fake_connector.uris();
        let expected_uris: Vec<String> = expected_limits
            .iter()
            .zip(cursors)
            .map(|(limit, cursor)| {
                format!("/api/cloud-connector/v2/connections?cursor={cursor}&limit={limit}")
            })
            .collect();
        assert_eq!(uris, expected_uris);
    }
}

#[tokio::test]
async fn watch_prints_the_list_again_when_it_changes() {
    let fixture = CliFixture::start().await;
    let mut command = fixture.command(&["connections", "list", "--watch", "--interval", "1"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next_line = async || {
        let line = timeout(CONDITION_TIMEOUT, lines.next_line()).await;
        line.expect("timed out waiting for the list")
            .unwrap()
            .unwrap()
    };
    assert_eq!(next_line().await, "no connections");
    let _client = fixture.connect("pc-1").await;
    assert_eq!(next_line().await, "");
    assert!(next_line().await.starts_with("CLIENT "));
    assert!(next_line().await.starts_with("pc-1 "));
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_narrow_terminal_cuts_long_values_and_a_pipe_does_not() {
    let fixture = CliFixture::start().await;
    let mut client =
        RawClient::connect(&fixture.connector.mqtt_address, &Connect::new("pc-1")).await;
    let fqdn = "long-name.".repeat(30);
    let mut message = online_message();
    message["content"]["canonical_facts"] = json!({"fqdn": fqdn});
    client
        .must_publish(&control_out_topic("pc-1"), &message)
        .await;
    fixture.connector.wait_until_connected("pc-1").await;
    let args = ["connections", "list"];
    assert!(fixture.run(0, &args).await.stdout.contains(&fqdn));
    let (code, output) = run_on_terminal(fixture.command(&args), "", "").await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains('…'), "{output}");
    assert!(
        output
            .lines()
            .all(|line| line.trim_end().chars().count() <= 80),
        "{output}"
    );
}

#[tokio::test]
async fn client_controlled_text_cannot_control_the_terminal() {
    let fixture = CliFixture::start().await;
    let mut client =
        RawClient::connect(&fixture.connector.mqtt_address, &Connect::new("pc-1")).await;
    let mut message = online_message();
    message["content"]["canonical_facts"] = json!({"fqdn": "a\u{1b}[2J\u{202e}\u{9b}b"});
    message["content"]["tags"] = json!({"k\u{1b}": "v\u{7f}"});
    client
        .must_publish(&control_out_topic("pc-1"), &message)
        .await;
    fixture.connector.wait_until_connected("pc-1").await;
    for format in ["table", "json", "yaml"] {
        for command in [
            ["connections", "list"].as_slice(),
            &["connections", "show", "pc-1"],
        ] {
            let mut args = command.to_vec();
            args.extend(["-o", format]);
            let text = fixture.run(0, &args).await.stdout;
            let is_control = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!text.contains(is_control), "{args:?}: {text:?}");
        }
    }
    // A pipe receives the same value as from the REST API.
    let details = fixture.run_json(&["connections", "show", "pc-1"]).await;
    assert_eq!(
        details["canonical_facts"]["fqdn"],
        "a\u{1b}[2J\u{202e}\u{9b}b"
    );
}
