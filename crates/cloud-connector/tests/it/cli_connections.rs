//! Tests of `connections` and `send` against a connector in embedded mode.

mod client;
mod errors;
mod list;

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::cli_rest::{Outcome, run};
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::{CONDITION_TIMEOUT, Connector};

/// A connector, and commands that find it in its data folder.
struct CliFixture {
    connector: Connector,
    key: String,
}

impl CliFixture {
    async fn start() -> Self {
        let connector = Connector::start().await;
        let key = std::fs::read_to_string(connector.data_dir().join("local.key")).unwrap();
        Self {
            connector,
            key: key.trim().to_owned(),
        }
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = self.connector.connector_command();
        command.env(
            "XDG_CONFIG_HOME",
            self.connector.data_dir().join("no-profiles"),
        );
        command.args(args);
        command
    }

    /// Runs a command and checks its exit code, and that its output does not contain the key.
    async fn run(&self, expected_code: i32, args: &[&str]) -> Outcome {
        let outcome = run(&mut self.command(args)).await;
        self.check(expected_code, args, &outcome);
        outcome
    }

    fn check(&self, expected_code: i32, args: &[&str], outcome: &Outcome) {
        let Outcome {
            code,
            stdout,
            stderr,
        } = outcome;
        assert_eq!(*code, Some(expected_code), "{args:?}: {stdout}{stderr}");
        for text in [stdout, stderr] {
            assert!(!text.contains(&self.key), "{args:?} printed the key");
            assert!(!text.contains('\u{1b}'), "{args:?}: {text}");
        }
    }

    async fn run_json(&self, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.extend(["-o", "json"]);
        serde_json::from_str(&self.run(0, &args).await.stdout).unwrap()
    }

    /// Connects a client that subscribes to its topics, and waits until the connector lists it.
    async fn connect(&self, client_id: &str) -> RawClient {
        let mut client =
            RawClient::connect(&self.connector.mqtt_address, &Connect::new(client_id)).await;
        for topic in ["control", "data"] {
            let filter = format!("redhat/insights/{client_id}/{topic}/in");
            client.subscribe(&filter).await;
        }
        let topic = control_out_topic(client_id);
        client.must_publish(&topic, &online_message()).await;
        self.connector.wait_until_connected(client_id).await;
        client
    }
}

/// Responds to the next ping or message. Returns what the client has received.
async fn respond(client: &mut RawClient, client_id: &str) -> Value {
    let (topic, received) = client.next_message().await;
    let is_control = topic.ends_with("/control/in");
    let response = json!({
        "type": if is_control { "event" } else { "data" }, "message_id": uuid::Uuid::new_v4(),
        "response_to": received["message_id"], "version": 1, "sent": "2026-01-02T15:04:05Z",
        "directive": "echo", "content": if is_control { json!("pong") } else { json!({}) },
    });
    let topic = if is_control {
        control_out_topic(client_id)
    } else {
        data_out_topic(client_id)
    };
    client.must_publish(&topic, &response).await;
    received
}

impl CliFixture {
    /// Runs a command on a pseudo-terminal of 80 columns, and types the input after the prompt. Returns
    /// the exit code and everything that the terminal shows.
    async fn run_on_terminal(
        &self,
        args: &[&str],
        prompt: &str,
        input: &str,
    ) -> (Option<i32>, String) {
        run_on_terminal(self.command(args), prompt, input).await
    }
}

/// Runs a command on a pseudo-terminal. The arguments of the command must not need quotation marks.
pub(super) async fn run_on_terminal(
    command: tokio::process::Command,
    prompt: &str,
    input: &str,
) -> (Option<i32>, String) {
    let command = command.as_std();
    let program = std::iter::once(command.get_program()).chain(command.get_args());
    let program: Vec<&str> = program.map(|part| part.to_str().unwrap()).collect();
    let mut script = tokio::process::Command::new("script");
    script
        .args(["-qefc", &program.join(" "), "/dev/null"])
        .kill_on_drop(true);
    script
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut output = Vec::new();
    let mut is_typed = prompt.is_empty();
    let interact = async {
        loop {
            let mut buffer = [0; 4096];
            let count = stdout.read(&mut buffer).await.unwrap();
            output.extend_from_slice(&buffer[..count]);
            if !is_typed && String::from_utf8_lossy(&output).contains(prompt) {
                stdin
                    .write_all(format!("{input}\n").as_bytes())
                    .await
                    .unwrap();
                is_typed = true;
            }
            if count == 0 {
                break;
            }
        }
        child.wait().await.unwrap()
    };
    let status = timeout(CONDITION_TIMEOUT, interact)
        .await
        .expect("the command did not end");
    (status.code(), String::from_utf8(output).unwrap())
}
