//! One test for each cause of an unreachable client, in both deployment modes: what the diagnosis and the
//! command `why` say, what the organization sees, and exactly which transitions the history and the
//! events contain.

mod broker_rejections;
mod disconnects;
mod logs;
mod tenants;

use std::collections::HashMap;
use std::path::PathBuf;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::events::{Event, EventReader};
use test_support::deployment::Settings;
use test_support::gateway::{FakeGateway, GatewayReply};
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{
    CONDITION_TIMEOUT, Deployment, DeploymentMode, connector_command, eventually, unique_id,
};

const TENANT_SECRET: &str = "tenant-secret-tenant-secret";
const MANAGEMENT_SECRET: &str = "management-secret-management";
/// The organization of most clients.
const ORG: &str = "10001";
const OTHER_ORG: &str = "10002";
/// End of a suggestion in distributed mode, if the broker may have rejected the client.
const EXTERNAL_BROKER_HINT: &str =
    " The log of the external MQTT broker shows whether it rejected the client.";

/// Status and reason of a history entry.
type Transition = (&'static str, &'static str);

const CONNECTED: Transition = ("online", "connected");

/// A deployment whose tenants are looked up at a fake gateway, and the event streams of two organizations.
struct Scenario {
    deployment: Deployment,
    gateway: FakeGateway,
    streams: HashMap<&'static str, EventStream>,
    key_folder: tempfile::TempDir,
}

/// The events that an organization has received so far.
struct EventStream {
    reader: EventReader,
    events: Vec<Event>,
}

impl Scenario {
    /// Starts a deployment. All clients belong to [`ORG`], until a test changes the reply of the gateway.
    async fn start(mode: DeploymentMode, extra_settings: Settings<'_>) -> Self {
        let gateway = FakeGateway::start(GatewayReply::Found(ORG)).await;
        let management_key =
            format!(r#"{{ secrets = ["{MANAGEMENT_SECRET}"], scopes = ["management"] }}"#);
        let mut settings = vec![
            ("api.keys.tenant", TENANT_SECRET),
            ("api.keys.management", management_key.as_str()),
            ("log.level", "debug"),
        ];
        settings.extend(extra_settings);
        let deployment = mode.start_with_gateway(&gateway, &settings).await;
        let key_folder = tempfile::tempdir().unwrap();
        std::fs::write(key_folder.path().join("key"), MANAGEMENT_SECRET).unwrap();
        let mut scenario = Self {
            deployment,
            gateway,
            streams: HashMap::new(),
            key_folder,
        };
        scenario.open_streams().await;
        scenario
    }

    async fn open_streams(&mut self) {
        for org in [ORG, OTHER_ORG] {
            let mut reader = EventReader::from_request(self.tenant_request(org, "/events")).await;
            reader.next_block().await.expect("the start of the stream");
            let events = Vec::new();
            self.streams.insert(org, EventStream { reader, events });
        }
    }

    /// Kills the connector and starts it again. Streams resume.
    async fn restart(&mut self) {
        self.deployment.restart().await;
        for org in [ORG, OTHER_ORG] {
            let stream = &self.streams[org];
            let last_id = stream.events.last().map_or(0, |event| event.id);
            let request = self.tenant_request(org, &format!("/events?last_event_id={last_id}"));
            let reader = EventReader::from_request(request).await;
            self.streams.get_mut(org).unwrap().reader = reader;
        }
    }

    fn tenant_request(&self, org: &str, path: &str) -> RequestBuilder {
        self.request("GET", "tenant", TENANT_SECRET, path)
            .header("x-rh-cloud-connector-org-id", org)
    }

    fn request(&self, method: &str, key_name: &str, secret: &str, path: &str) -> RequestBuilder {
        self.deployment
            .unauthenticated_request(method, &format!("/v2{path}"))
            .header("x-rh-cloud-connector-client-id", key_name)
            .header("x-rh-cloud-connector-psk", secret)
    }

    /// Connects a client with these options, and publishes its online message.
    async fn connect_with(&self, connect: &Connect) -> RawClient {
        let connect = connect.clone().without_keep_alive();
        let mut client = RawClient::connect(&self.deployment.mqtt_address(), &connect).await;
        let topic = control_out_topic(&connect.client_id);
        client.must_publish(&topic, &online_message()).await;
        client
    }

    /// Connects a client, and waits until its organization sees it.
    async fn connect(&self, client_id: &str) -> RawClient {
        let client = self.connect_with(&Connect::new(client_id)).await;
        self.wait_for_details(ORG, client_id, "connected").await;
        client
    }

    /// Returns the details of a client. Returns the status and the body.
    async fn details(&self, org: &str, client_id: &str) -> (u16, Value) {
        let request = self.tenant_request(org, &format!("/connections/{client_id}"));
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Waits until the details of a client have this status. Returns the details.
    async fn wait_for_details(&self, org: &str, client_id: &str, status: &str) -> Value {
        eventually(&format!("{client_id} to be {status}"), || async {
            let (code, details) = self.details(org, client_id).await;
            (code == 200 && details["status"] == status).then_some(details)
        })
        .await
    }

    /// Returns the history that an organization sees, the oldest entry first. Returns `None` if the
    /// organization has no such client.
    async fn history(&self, org: &str, client_id: &str) -> Option<Vec<Value>> {
        let request = self.tenant_request(org, &format!("/connections/{client_id}/history"));
        let response = request.send().await.unwrap();
        if response.status() == 404 {
            return None;
        }
        assert_eq!(response.status(), 200);
        let body: Value = response.json().await.unwrap();
        let mut entries = body["data"].as_array().unwrap().clone();
        entries.reverse();
        Some(entries)
    }

    /// Checks that the organization sees exactly these transitions of a client, in the history and, except
    /// for takeovers, in the events. Waits until the history contains them.
    async fn check_transitions(
        &mut self,
        org: &'static str,
        client_id: &str,
        expected: &[Transition],
    ) {
        let description = format!("the history of {client_id} in {org}: {expected:?}");
        let history = eventually(&description, || async {
            let history = self.history(org, client_id).await.unwrap_or_default();
            (history.len() >= expected.len()).then_some(history)
        })
        .await;
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
        let transitions = history
            .iter()
            .map(|entry| (text(entry, "status"), text(entry, "reason")));
        let as_text = |(status, reason): &Transition| ((*status).to_owned(), (*reason).to_owned());
        let expected_texts: Vec<_> = expected.iter().map(as_text).collect();
        assert_eq!(
            transitions.collect::<Vec<_>>(),
            expected_texts,
            "history in {org}"
        );
        let numbers: Vec<u64> = history
            .iter()
            .map(|it| it["number"].as_u64().unwrap())
            .collect();
        assert!(
            numbers.windows(2).all(|pair| pair[0] < pair[1]),
            "{numbers:?}"
        );

        self.read_events(org).await;
        let events = self.streams[org].events.iter();
        let transitions: Vec<_> = events
            .filter(|event| event.data["client_id"] == client_id)
            .filter_map(|event| match event.event_type.as_str() {
                "connection.online" => Some(("online".to_owned(), text(&event.data, "cause"))),
                "connection.offline" => Some(("offline".to_owned(), text(&event.data, "reason"))),
                _ => None,
            })
            .collect();
        let visible = |(_, reason): &&(String, String)| reason != "takeover";
        let expected_events: Vec<_> = expected_texts.iter().filter(visible).cloned().collect();
        assert_eq!(transitions, expected_events, "events in {org}");
    }

    /// Reads all events of an organization up to now: connects a client of the organization, and reads up
    /// to its event.
    async fn read_events(&mut self, org: &'static str) {
        let marker = unique_id("marker");
        self.gateway.set_reply(&marker, GatewayReply::Found(org));
        let _client = self.connect_with(&Connect::new(&marker)).await;
        let stream = self.streams.get_mut(org).unwrap();
        loop {
            let event = stream.reader.next_event().await;
            assert_eq!(event.data["org_id"], org);
            let is_marker = event.data["client_id"] == marker;
            stream.events.push(event);
            if is_marker {
                return;
            }
        }
    }

    /// Returns the events of a client that its organization has received.
    fn events_of(&self, org: &str, client_id: &str) -> Vec<Event> {
        let events = self.streams[org].events.iter();
        let of_client = events.filter(|event| event.data["client_id"] == client_id);
        of_client.cloned().collect()
    }

    async fn diagnosis(&self, client_id: &str) -> Value {
        let path = format!("/clients/{client_id}/diagnosis");
        let request = self.request("GET", "management", MANAGEMENT_SECRET, &path);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.json().await.unwrap()
    }

    /// Runs the command `why` against the running connector.
    async fn why(&self, client_id: &str) -> Why {
        let key_file: PathBuf = self.key_folder.path().join("key");
        let request = self.deployment.unauthenticated_request("GET", "");
        let url = request
            .build()
            .unwrap()
            .url()
            .origin()
            .ascii_serialization();
        let mut command = connector_command();
        command
            .env("XDG_CONFIG_HOME", self.key_folder.path())
            .args(["why", client_id, "--url", &url, "--key-name", "management"])
            .arg("--key-file")
            .arg(key_file);
        let output = timeout(CONDITION_TIMEOUT, command.output());
        let output = output.await.expect("the command did not end").unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, "");
        Why::new(
            output.status.code(),
            &String::from_utf8(output.stdout).unwrap(),
        )
    }

    /// Checks what the command `why` prints about a client that cannot be reached, and that the diagnosis
    /// has the same sentences. The expected sentences have `TIME` in place of each time and `PEER` in place of
    /// each address.
    async fn check_why(
        &self,
        client_id: &str,
        state: &str,
        summary: &str,
        suggestion: &str,
    ) -> Value {
        let why = self.why(client_id).await;
        let expected_code = i32::from(state != "connected");
        assert_eq!(why.code, Some(expected_code), "{}", why.text);
        assert_eq!(why.summary, summary, "{}", why.text);
        assert_eq!(
            why.suggestion.as_deref().unwrap_or_default(),
            suggestion,
            "{}",
            why.text
        );
        assert!(
            why.text.contains(&format!("  State            {state}\n")),
            "{}",
            why.text
        );
        let diagnosis = self.diagnosis(client_id).await;
        assert_eq!(diagnosis["state"], state, "{diagnosis}");
        assert_eq!(diagnosis["client_id"], client_id);
        let sentence =
            |field: &str| without_variable_words(diagnosis[field].as_str().unwrap_or_default());
        assert_eq!(sentence("summary"), summary);
        assert_eq!(sentence("suggestion"), suggestion);
        diagnosis
    }

    /// Returns the suggestion of this deployment mode.
    fn with_broker_hint(&self, suggestion: &str) -> String {
        let hint = if self.deployment.has_external_broker() {
            EXTERNAL_BROKER_HINT
        } else {
            ""
        };
        format!("{suggestion}{hint}")
    }
}

/// The output of the command `why`.
struct Why {
    code: Option<i32>,
    text: String,
    summary: String,
    suggestion: Option<String>,
}

impl Why {
    fn new(code: Option<i32>, text: &str) -> Self {
        let unwrap = |paragraph: &str| without_variable_words(&paragraph.replace('\n', " "));
        let summary = text.split("\n\n").next().map(unwrap).unwrap_or_default();
        let suggestion = text.split("\n\nSuggestion: ").nth(1);
        Self {
            code,
            text: text.to_owned(),
            summary,
            suggestion: suggestion.map(|it| unwrap(it.trim_end())),
        }
    }
}

/// Replaces each time by `TIME`, and each address of a client by `PEER`.
fn without_variable_words(text: &str) -> String {
    let replace = |word: &str| {
        let core = word.trim_end_matches([',', ';', ':', '.']);
        let end = &word[core.len()..];
        if core.parse::<jiff::Timestamp>().is_ok() {
            format!("TIME{end}")
        } else if core.parse::<std::net::SocketAddr>().is_ok() {
            format!("PEER{end}")
        } else {
            word.to_owned()
        }
    };
    text.split(' ').map(replace).collect::<Vec<_>>().join(" ")
}

/// Checks that the organization has no such client: all endpoints respond as for an unknown client.
async fn assert_unknown_to(scenario: &Scenario, org: &str, client_id: &str) {
    let unknown = unique_id("unknown");
    for suffix in ["", "/history", "/status"] {
        let mut responses = Vec::new();
        for id in [client_id, &unknown] {
            let request = scenario.tenant_request(org, &format!("/connections/{id}{suffix}"));
            let response = request.send().await.unwrap();
            responses.push((response.status(), response.text().await.unwrap()));
        }
        assert_eq!(responses[0], responses[1], "{suffix}");
    }
    let request = scenario.tenant_request(org, &format!("/connections?search={client_id}"));
    let body: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(body["data"], json!([]));
}
